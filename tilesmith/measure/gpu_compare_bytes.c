$HEAD void $NAME($GLOBAL const unsigned char *got, $GLOBAL const unsigned char *want,
    $GLOBAL const long *n, $GLOBAL int *differs) {
  int wrong = 0;
  for (long i = $BLOCK * $THREADS + $THREAD; i < n[0]; i += $GRID * $THREADS)
    if (got[i] != want[i]) wrong = 1;
  if (wrong) differs[0] = 1;
}
