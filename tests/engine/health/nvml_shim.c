/* Answers like NVML from a text file named in MSCTL_NVML_SHIM, read anew at each call.
 *
 * Lines are `key value`: `count 8`, `driver 550.54.15`, `gpu3.pcie_width 8`, `gpu3.error 15`.
 * What the file does not say is "not supported" (3). `gpu3.sleep 60` makes the GPU's handle hang.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int R;
typedef unsigned int U;
typedef unsigned long long L;
#define OK 0
#define UNSUPPORTED 3
#define API __attribute__((visibility("default")))

static int text(const char *key, char *out, size_t n) {
  const char *path = getenv("MSCTL_NVML_SHIM");
  FILE *f = path ? fopen(path, "r") : NULL;
  char line[512];
  size_t k = strlen(key);
  int found = 0;
  if (!f) return 0;
  while (!found && fgets(line, sizeof line, f))
    if (!strncmp(line, key, k) && line[k] == ' ') {
      line[strcspn(line, "\n")] = 0;
      snprintf(out, n, "%s", line + k + 1);
      found = 1;
    }
  fclose(f);
  return found;
}

static int gtext(void *h, const char *name, char *out, size_t n) {
  char key[96];
  snprintf(key, sizeof key, "gpu%ld.%s", (long)h - 1, name);
  return text(key, out, n);
}

static int num(void *h, const char *name, double *v) {
  char b[256];
  if (!gtext(h, name, b, sizeof b)) return 0;
  *v = atof(b);
  return 1;
}

#define GET_U(fn, name) \
  API R fn(void *h, U *out) { double v; if (!num(h, name, &v)) return UNSUPPORTED; *out = (U)v; return OK; }

API R nvmlInitWithFlags(U flags) { char b[64]; (void)flags; return text("init_error", b, 64) ? atoi(b) : OK; }
API R nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API R nvmlShutdown(void) { return OK; }
API const char *nvmlErrorString(R r) {
  return r == 15 ? "GPU is lost" : r == 999 ? "Unknown Error" : r == 18 ? "Driver/library version mismatch"
       : r == 9 ? "Driver Not Loaded" : r == 3 ? "Not Supported" : "Error";
}
static R fill(const char *key, char *out, U n) { return text(key, out, n) ? OK : UNSUPPORTED; }
API R nvmlSystemGetDriverVersion(char *out, U n) { return fill("driver", out, n); }
API R nvmlSystemGetNVMLVersion(char *out, U n) { return fill("library", out, n); }
API R nvmlSystemGetCudaDriverVersion(int *out) { char b[64]; if (!text("cuda", b, 64)) return UNSUPPORTED; *out = atoi(b); return OK; }
API R nvmlDeviceGetCount_v2(U *out) { char b[64]; *out = text("count", b, 64) ? (U)atoi(b) : 0; return OK; }
API R nvmlDeviceGetHandleByIndex_v2(U i, void **h) {
  double v;
  *h = (void *)((long)i + 1);
  if (num(*h, "sleep", &v)) sleep((unsigned)v);
  return num(*h, "error", &v) ? (R)v : OK;
}
API R nvmlDeviceGetName(void *h, char *out, U n) { return gtext(h, "name", out, n) ? OK : UNSUPPORTED; }
API R nvmlDeviceGetUUID(void *h, char *out, U n) { return gtext(h, "uuid", out, n) ? OK : UNSUPPORTED; }
API R nvmlDeviceGetVbiosVersion(void *h, char *out, U n) { return gtext(h, "vbios", out, n) ? OK : UNSUPPORTED; }

typedef struct { char legacy[16]; U domain, bus, device, id, sub; char bus_id[32]; } Pci;
API R nvmlDeviceGetPciInfo_v3(void *h, Pci *p) {
  char b[32];
  if (!gtext(h, "pci", b, 32)) return UNSUPPORTED;
  memset(p, 0, sizeof *p);
  snprintf(p->bus_id, 32, "0000%s", b);
  return OK;
}

static R pair(void *h, const char *name, U *a, U *b) {
  double v;
  if (!num(h, name, &v)) return UNSUPPORTED;
  *a = *b = (U)v;
  return OK;
}
API R nvmlDeviceGetEccMode(void *h, U *now, U *next) { return pair(h, "ecc_on", now, next); }
API R nvmlDeviceGetMigMode(void *h, U *now, U *next) { return pair(h, "mig_on", now, next); }
GET_U(nvmlDeviceGetPersistenceMode, "persistence")
GET_U(nvmlDeviceGetComputeMode, "compute_mode")

API R nvmlDeviceGetMemoryErrorCounter(void *h, U type, U since, U place, L *out) {
  double v;
  if (type != 1 || since != 0) return UNSUPPORTED;
  if (!num(h, place == 7 ? "sram_uncorrected" : place == 2 ? "dram_uncorrected" : "none", &v)) return UNSUPPORTED;
  *out = (L)v;
  return OK;
}
API R nvmlDeviceGetTotalEccErrors(void *h, U type, U since, L *out) {
  double v;
  if (!num(h, type == 0 && since == 0 ? "corrected" : type == 1 && since == 1 ? "aggregate_uncorrected" : "none", &v)) return UNSUPPORTED;
  *out = (L)v;
  return OK;
}
API R nvmlDeviceGetRemappedRows(void *h, U *c, U *u, U *pending, U *failed) {
  double a, b, p, f;
  if (!num(h, "remap_corrected", &a) || !num(h, "remap_uncorrected", &b) || !num(h, "remap_pending", &p) || !num(h, "remap_failed", &f)) return UNSUPPORTED;
  *c = (U)a; *u = (U)b; *pending = (U)p; *failed = (U)f;
  return OK;
}
API R nvmlDeviceGetRetiredPages(void *h, U cause, U *n, L *pages) {
  double v;
  if (!num(h, "retired_pages", &v)) return UNSUPPORTED;
  U have = cause == 1 ? (U)v : 0; /* all of them double-bit */
  if (!pages) { *n = have; return have ? 7 : OK; }
  for (U i = 0; i < have; i++) pages[i] = 0x1000ull * i;
  *n = have;
  return OK;
}
GET_U(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")
GET_U(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
GET_U(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
GET_U(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
GET_U(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
GET_U(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
GET_U(nvmlDeviceGetPerformanceState, "pstate")
API R nvmlDeviceGetUtilizationRates(void *h, U *u) { double v; if (!num(h, "utilization", &v)) return UNSUPPORTED; u[0] = (U)v; u[1] = 0; return OK; }
API R nvmlDeviceGetCurrentClocksEventReasons(void *h, L *out) { double v; if (!num(h, "throttle", &v)) return UNSUPPORTED; *out = (L)v; return OK; }
API R nvmlDeviceGetClockInfo(void *h, U kind, U *out) { double v; (void)kind; if (!num(h, "clock_sm", &v)) return UNSUPPORTED; *out = (U)v; return OK; }
API R nvmlDeviceGetMaxClockInfo(void *h, U kind, U *out) { double v; (void)kind; if (!num(h, "clock_sm_max", &v)) return UNSUPPORTED; *out = (U)v; return OK; }
API R nvmlDeviceGetTemperature(void *h, U sensor, U *out) { double v; (void)sensor; if (!num(h, "temperature", &v)) return UNSUPPORTED; *out = (U)v; return OK; }
API R nvmlDeviceGetTemperatureThreshold(void *h, U kind, U *out) { double v; (void)kind; if (!num(h, "temperature_slowdown", &v)) return UNSUPPORTED; *out = (U)v; return OK; }
API R nvmlDeviceGetPowerManagementLimit(void *h, U *out) { double v; if (!num(h, "power_limit", &v)) return UNSUPPORTED; *out = (U)(v * 1000); return OK; }
API R nvmlDeviceGetPowerManagementDefaultLimit(void *h, U *out) { double v; if (!num(h, "power_default", &v)) return UNSUPPORTED; *out = (U)(v * 1000); return OK; }
API R nvmlDeviceGetMemoryInfo(void *h, L *m) {
  double t, u;
  if (!num(h, "memory_total", &t) || !num(h, "memory_used", &u)) return UNSUPPORTED;
  m[0] = (L)t; m[1] = (L)(t - u); m[2] = (L)u;
  return OK;
}
typedef struct { U pid; L used; U gi, ci; } Process;
API R nvmlDeviceGetComputeRunningProcesses_v3(void *h, U *n, Process *out) {
  char b[256], *save = NULL;
  U seen = 0, room = *n;
  if (!gtext(h, "processes", b, sizeof b)) return UNSUPPORTED;
  for (char *w = strtok_r(b, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
    if (!strcmp(w, "none")) break;
    if (out && seen < room) out[seen] = (Process){(U)atoi(w), 1ull << 30, 0, 0};
    seen++;
  }
  *n = seen;
  return seen > room ? 7 : OK;
}
API R nvmlDeviceGetNvLinkState(void *h, U link, U *on) {
  char b[64]; /* one digit a link: 110111 */
  if (!gtext(h, "links", b, sizeof b) || link >= strlen(b)) return UNSUPPORTED;
  *on = b[link] == '1';
  return OK;
}
API R nvmlDeviceGetNvLinkErrorCounter(void *h, U link, U kind, L *out) {
  char name[32];
  double v;
  snprintf(name, sizeof name, "link_errors%u", link);
  *out = kind == 2 && num(h, name, &v) ? (L)v : 0; /* all of them CRC errors */
  return OK;
}
typedef struct { unsigned char uuid[16]; U status, clique; unsigned char state; } Fabric;
API R nvmlDeviceGetGpuFabricInfo(void *h, Fabric *f) {
  double v, s;
  if (!num(h, "fabric", &v)) return UNSUPPORTED;
  memset(f, 0, sizeof *f);
  f->state = (unsigned char)v;
  f->status = num(h, "fabric_status", &s) ? (U)s : 0;
  return OK;
}
