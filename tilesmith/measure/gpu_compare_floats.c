$HEAD void $NAME($GLOBAL const $STORED *got, $GLOBAL const $STORED *want,
    $GLOBAL const unsigned short *limits, $GLOBAL const long *n, $GLOBAL int *differs) {
  int wrong = 0;
  for (long i = $BLOCK * $THREADS + $THREAD; i < n[0]; i += $GRID * $THREADS) {
    const float w = $WANT, g = $GOT, limit = $LIMIT;
    if (!($ABS(g - w) <= limit) && g != w && !(g != g && w != w) && limit == limit) wrong = 1;
  }
  if (wrong) differs[0] = 1;
}
