/* NVML of a node without GPUs, until a file appears: then a call that never returns, as of a wedged
 * driver. MSCTL_BENCH_WEDGED names the file. */
#include <stdlib.h>
#include <unistd.h>

enum { DRIVER_NOT_LOADED = 9 };

static int answer(void) {
  const char *wedged = getenv("MSCTL_BENCH_WEDGED");
  while (wedged && access(wedged, F_OK) == 0) sleep(1000);
  return DRIVER_NOT_LOADED;
}

int nvmlInit_v2(void) { return answer(); }

int nvmlInitWithFlags(unsigned int flags) {
  (void)flags;
  return answer();
}

int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int code) {
  return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}
