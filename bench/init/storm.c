/* Plays the store traffic of N ranks that set up their process groups, one
 * connection a rank, from one epoll loop, against a real store server.
 *
 * storm PROTO PORT N SCENARIO [MAXGROUPS] [TP] [PP]
 *   PROTO     tcp (torch TCPStore wire protocol) | redis (RESP)
 *   SCENARIO  poll     all ranks meet after each group, counter polled every 10 ms
 *             global   all ranks meet after each group, waiters parked in the server
 *             local    only a group's members meet after it
 *             ordered  no meeting after a group, one for all at the end
 *             batched  each rank writes all it roots at once, one meeting, one bulk read
 * STORM_PASSWORD lets redis connections in. One line of JSON on stdout. Builds with: cc -O2 -o storm storm.c
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { POLL, GLOBAL, LOCAL, ORDERED, BATCHED };
enum { O_NONE, O_ADD, O_SET, O_WAIT, O_GET, O_MGET };
enum { T_VALIDATE = 0, T_SET = 1, T_GET = 3, T_ADD = 4, T_WAIT = 6, T_MGET = 10, T_MSET = 11 };

typedef struct { int n, *r; } Group;
typedef struct {
  int fd, id, gi, step, op, sub, ngroups, *groups;
  int need;              /* values still to read for a bulk read */
  int64_t got;           /* the last counter */
  char in[1 << 16]; int len;
} Rank;

static int N, proto, scen, G, TP = 8, PP = 8;
static Group *groups;
static Rank *ranks;
static long nops, ncmds, done;
static char run[32];
static int *qr, qh, qt, qcap; static double *qd; /* ranks that sleep 10 ms */

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void die(const char *m) { perror(m); exit(1); }

static void addg(int n, int *r) { groups[G].n = n; groups[G].r = malloc(n * sizeof(int)); memcpy(groups[G].r, r, n * sizeof(int)); G++; }

static void layout(void) {
  int tp = TP < N ? TP : N, pp = PP < N / tp ? PP : N / tp, dp = N / (tp * pp), span = tp * dp;
  int *b = malloc(N * sizeof(int));
  groups = calloc(4 * N + 64, sizeof(Group));
  for (int s = 0; s < pp; s++) for (int t = 0; t < tp; t++) { for (int d = 0; d < dp; d++) b[d] = s * span + t + tp * d; addg(dp, b); }
  for (int d = 0; d < dp; d++) { int k = 0; for (int s = 0; s < pp; s++) for (int t = 0; t < tp; t++) b[k++] = s * span + d * tp + t; addg(k, b); }
  for (int i = 0; i < N / tp; i++) { for (int t = 0; t < tp; t++) b[t] = i * tp + t; addg(tp, b); }
  for (int i = 0; i < span; i++) {
    for (int s = 0; s < pp; s++) b[s] = i + s * span;
    addg(pp, b);
    if (pp > 1) b[1] = b[pp - 1];
    addg(pp > 1 ? 2 : 1, b);
    addg(1, b);
  }
}

static char ob[1 << 20]; static int ol;
static void w8(uint8_t v) { ob[ol++] = v; }
static void w64(uint64_t v) { memcpy(ob + ol, &v, 8); ol += 8; }
static void wstr(const char *s) { int n = strlen(s); w64(n); memcpy(ob + ol, s, n); ol += n; }
static void arr(int n) { ol += sprintf(ob + ol, "*%d\r\n", n); }
static void bulk(const char *s) { ol += sprintf(ob + ol, "$%zu\r\n%s\r\n", strlen(s), s); }

static void flush(Rank *k) {
  int o = 0;
  while (o < ol) {
    int w = send(k->fd, ob + o, ol - o, MSG_NOSIGNAL);
    if (w < 0) { if (errno == EAGAIN) continue; die("send"); }
    o += w;
  }
  ol = 0;
}

#define VAL "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* a put has no reply in tcp and one in redis */
static void put(const char *key) {
  char k[96];
  nops++;
  if (proto == 0) { w8(T_SET); wstr(key); wstr(VAL); ncmds++; }
  else { snprintf(k, 96, "w:%s", key); arr(7); bulk("XADD"); bulk(k); bulk("MAXLEN"); bulk("1"); bulk("*"); bulk("x"); bulk(VAL); ncmds++; }
}

static void op_add(Rank *k, const char *key, int v) {
  nops++; ncmds++; k->op = O_ADD;
  if (proto == 0) { w8(T_ADD); wstr(key); w64(v); }
  else { char b[16]; arr(3); bulk("INCRBY"); bulk(key); sprintf(b, "%d", v); bulk(b); }
}
static void xread_head(int nkeys) { ol += sprintf(ob + ol, "*%d\r\n", 6 + 2 * nkeys); bulk("XREAD"); bulk("COUNT"); bulk("1"); bulk("BLOCK"); bulk("0"); bulk("STREAMS"); }

static void op_wait(Rank *k, const char *key) {
  nops++; ncmds++; k->op = O_WAIT;
  if (proto == 0) { w8(T_WAIT); w64(1); wstr(key); }
  else { char b[96]; snprintf(b, 96, "w:%s", key); xread_head(1); bulk(b); bulk("0"); }
}

static void step(Rank *k);

static void sleep10(Rank *k) { k->op = O_NONE; qr[qt % qcap] = k->id; qd[qt % qcap] = now() + 0.010; qt++; }

/* returns 1 when a whole reply of the pending operation was taken from the buffer */
static int resp_one(const char *b, int n, int *used, int64_t *num) {
  int i = 0;
  while (i + 1 < n && !(b[i] == '\r' && b[i + 1] == '\n')) i++;
  if (i + 1 >= n) return 0;
  long v = atol(b + 1);
  i += 2;
  if (b[0] == '-') { fprintf(stderr, "redis: %.80s\n", b); exit(1); }
  if (b[0] == ':') { *num = v; *used = i; return 1; }
  if (b[0] == '+') { *used = i; return 1; }
  if (b[0] == '$') { if (v < 0) { *used = i; return 1; } if (i + v + 2 > n) return 0; *used = i + v + 2; return 1; }
  if (b[0] == '*') {
    for (long j = 0; j < v; j++) { int u; int64_t x; if (!resp_one(b + i, n - i, &u, &x)) return 0; i += u; }
    *used = i; return 1;
  }
  fprintf(stderr, "bad reply\n"); exit(1);
}

static int reply(Rank *k) {
  int used = 0;
  if (proto == 1) { int64_t x = 0; if (!resp_one(k->in, k->len, &used, &x)) return 0; k->got = x; }
  else if (k->op == O_ADD) { if (k->len < 8) return 0; memcpy(&k->got, k->in, 8); used = 8; }
  else if (k->op == O_WAIT) { if (k->len < 1) return 0; used = 1; }
  else if (k->op == O_GET) { uint64_t n; if (k->len < 8) return 0; memcpy(&n, k->in, 8); if (k->len < (int)(8 + n)) return 0; used = 8 + n; }
  else { fprintf(stderr, "stray bytes\n"); exit(1); }
  memmove(k->in, k->in + used, k->len - used);
  k->len -= used;
  return 1;
}

/* One rank's programme. Each case sends one request and returns, or falls on. */
static void step(Rank *k) {
  char key[96];
  for (;;) {
    int last = scen == GLOBAL || scen == POLL ? G : k->ngroups;
    if (scen == BATCHED && k->gi == 0 && k->step < 50) {
      if (k->step == 0) { /* write all uids this rank roots */
        int c = 0;
        for (int i = 0; i < k->ngroups; i++) if (groups[k->groups[i]].r[0] == k->id) { snprintf(key, 96, "%s/u%d", run, k->groups[i]); put(key); c++; }
        k->sub = c; k->step = 1;
        if (c && proto == 1) { k->op = O_SET; flush(k); return; }
        continue;
      }
      if (k->step == 1) { if (proto == 1 && k->op == O_SET && --k->sub > 0) return; k->step = 10; snprintf(key, 96, "%s/end", run); op_add(k, key, 1); flush(k); return; }
      if (k->step == 10) { snprintf(key, 96, "%s/go", run); k->step = 12; if (k->got == N) { put(key); if (proto == 1) { k->step = 11; k->op = O_SET; flush(k); return; } } op_wait(k, key); flush(k); return; }
      if (k->step == 11) { snprintf(key, 96, "%s/go", run); k->step = 12; op_wait(k, key); flush(k); return; }
      if (k->step == 12) { /* one bulk read of the uids it does not root */
        int c = 0;
        for (int i = 0; i < k->ngroups; i++) if (groups[k->groups[i]].r[0] != k->id) c++;
        k->step = 50; k->gi = last;
        if (!c) continue;
        nops++; ncmds++;
        if (proto == 0) { w8(T_MGET); w64(c); } else xread_head(c);
        for (int i = 0; i < k->ngroups; i++) { int g = k->groups[i]; if (groups[g].r[0] == k->id) continue; snprintf(key, 96, proto ? "w:%s/u%d" : "%s/u%d", run, g); if (proto) bulk(key); else wstr(key); }
        if (proto) for (int i = 0; i < c; i++) bulk("0");
        k->op = O_GET; k->need = proto ? 1 : c; flush(k); return;
      }
    }
    if (k->step == 50) { if (--k->need > 0) return; k->step = 99; }
    if (k->gi >= last && k->step < 90) { if (scen == ORDERED) { k->step = 90; } else k->step = 99; }
    if (k->step == 90) { snprintf(key, 96, "%s/end", run); op_add(k, key, 1); k->step = 91; flush(k); return; }
    if (k->step == 91) { snprintf(key, 96, "%s/go", run); k->step = 98; if (k->got == N) { put(key); if (proto) { k->step = 92; k->op = O_SET; flush(k); return; } } op_wait(k, key); flush(k); return; }
    if (k->step == 92) { snprintf(key, 96, "%s/go", run); k->step = 98; op_wait(k, key); flush(k); return; }
    if (k->step >= 98) { k->op = O_NONE; done++; return; }
    int g = scen == GLOBAL || scen == POLL ? k->gi : k->groups[k->gi], member = 0, want = scen == LOCAL ? groups[g].n : N;
    for (int i = 0; i < groups[g].n && !member; i++) member = groups[g].r[i] == k->id;
    switch (k->step) {
      case 0: /* rendezvous: the root writes an id, the others wait for it and read it */
        k->step = 2;
        if (!member || groups[g].n < 2) continue;
        snprintf(key, 96, "%s/u%d", run, g);
        if (groups[g].r[0] == k->id) { put(key); if (proto) { k->op = O_SET; flush(k); return; } continue; }
        k->step = proto ? 2 : 1; op_wait(k, key); flush(k); return;
      case 1: snprintf(key, 96, "%s/u%d", run, g); nops++; ncmds++; w8(T_GET); wstr(key); k->op = O_GET; k->step = 2; flush(k); return;
      case 2: /* meeting */
        if (scen == ORDERED) { k->gi++; k->step = 0; continue; }
        snprintf(key, 96, "%s/c%d", run, g); op_add(k, key, 1); k->step = 3; flush(k); return;
      case 3: snprintf(key, 96, "%s/c%d", run, g); op_add(k, key, 0); k->step = 4; flush(k); return;
      case 4:
        if (scen == POLL) { if (k->got < want) { k->step = 3; sleep10(k); return; } k->gi++; k->step = 0; continue; }
        snprintf(key, 96, "%s/g%d", run, g); k->step = 6;
        if (k->got == want) { put(key); if (proto) { k->step = 5; k->op = O_SET; flush(k); return; } }
        op_wait(k, key); flush(k); return;
      case 5: snprintf(key, 96, "%s/g%d", run, g); k->step = 6; op_wait(k, key); flush(k); return;
      case 6: k->gi++; k->step = 0; continue;
    }
  }
}

int main(int c, char **v) {
  if (c < 5) return 2;
  proto = !strcmp(v[1], "redis"); N = atoi(v[3]);
  scen = !strcmp(v[4], "poll") ? POLL : !strcmp(v[4], "global") ? GLOBAL : !strcmp(v[4], "local") ? LOCAL : !strcmp(v[4], "ordered") ? ORDERED : BATCHED;
  if (c > 6) TP = atoi(v[6]);
  if (c > 7) PP = atoi(v[7]);
  layout();
  int all = G, max = c > 5 ? atoi(v[5]) : 0;
  if (max > 0 && max < G) { /* a spread sample of the groups */ for (int i = 0; i < max; i++) groups[i] = groups[(long)i * G / max]; G = max; }
  snprintf(run, 32, "s%d", getpid());
  ranks = calloc(N, sizeof(Rank));
  qcap = N + 1; qr = malloc(qcap * sizeof(int)); qd = malloc(qcap * sizeof(double));
  int *cnt = calloc(N, sizeof(int));
  for (int g = 0; g < G; g++) for (int i = 0; i < groups[g].n; i++) cnt[groups[g].r[i]]++;
  for (int i = 0; i < N; i++) { ranks[i].groups = malloc((cnt[i] + 1) * sizeof(int)); ranks[i].id = i; }
  for (int g = 0; g < G; g++) for (int i = 0; i < groups[g].n; i++) { Rank *k = &ranks[groups[g].r[i]]; k->groups[k->ngroups++] = g; }
  int ep = epoll_create1(0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(v[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  double tc = now();
  for (int i = 0; i < N; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (connect(fd, (void *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (proto == 1 && getenv("STORM_PASSWORD")) { /* before the clock starts */
      char ok[16];
      arr(2); bulk("AUTH"); bulk(getenv("STORM_PASSWORD"));
      if (send(fd, ob, ol, 0) != ol || recv(fd, ok, 5, MSG_WAITALL) != 5 || ok[0] != '+') die("auth");
      ol = 0;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = i};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    ranks[i].fd = fd;
    if (proto == 0) { uint32_t magic = 0x3C85F7CE; w8(T_VALIDATE); memcpy(ob + ol, &magic, 4); ol += 4; flush(&ranks[i]); }
  }
  double t0 = now();
  for (int i = 0; i < N; i++) step(&ranks[i]);
  static struct epoll_event ev[4096];
  while (done < N) {
    int ms = -1;
    if (qh < qt) { double d = qd[qh % qcap] - now(); ms = d <= 0 ? 0 : (int)(d * 1000) + 1; }
    int n = epoll_wait(ep, ev, 4096, ms);
    for (int i = 0; i < n; i++) {
      Rank *k = &ranks[ev[i].data.u32];
      int r = recv(k->fd, k->in + k->len, sizeof k->in - k->len, 0);
      if (r <= 0) { if (r < 0 && errno == EAGAIN) continue; fprintf(stderr, "server closed on rank %d step %d\n", k->id, k->step); exit(1); }
      k->len += r;
      while (k->len && reply(k)) step(k);
    }
    double t = now();
    while (qh < qt && qd[qh % qcap] <= t) { Rank *k = &ranks[qr[qh++ % qcap]]; step(k); }
    if (t - t0 > 240) { fprintf(stderr, "gave up: %ld of %d done\n", done, N); exit(1); }
  }
  double t1 = now();
  printf("{\"proto\":\"%s\",\"scenario\":\"%s\",\"ranks\":%d,\"groups_all\":%d,\"groups_run\":%d,\"connect_s\":%.3f,\"wall_s\":%.3f,\"ops\":%ld,\"ops_per_s\":%.0f}\n",
         v[1], v[4], N, all, G, t0 - tc, t1 - t0, nops, nops / (t1 - t0));
  return 0;
}
