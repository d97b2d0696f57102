$HEAD void reference($GLOBAL float *out) {
  int t = $BLOCK * $THREADS + $THREAD;
  float c0 = 1.0f + t, c1 = 2.0f, c2 = 3.0f, c3 = 4.0f;
  for (int i = 0; i < $STEPS; i++) {
    c0 = c0 * 0.5f + 1.0f;
    c1 = c1 * 0.5f + 1.0f;
    c2 = c2 * 0.5f + 1.0f;
    c3 = c3 * 0.5f + 1.0f;
  }
  out[t] = c0 + c1 + c2 + c3;
}
