/* What all operators share: element types, status codes, how an entry point is declared.
 *
 * Every operator is declared once with MS_ENTRY and exists twice: `ms_cpu_<name>` (C++, cpu/) and
 * `ms_cuda_<name>` (CUDA, kernels/), with the same parameters and the same contract. The interface is
 * plain C: pointers, sizes, strides, a stream; no torch, no allocation, no global state.
 *
 * Common contract
 *   pointers   aligned to their element type; 16-byte alignment is used where it is found, never needed.
 *              No rows (or no elements) are no work: pointers are not looked at then
 *   strides    in elements, between rows; elements of a row are contiguous
 *   wide type  float for MS_F32, MS_BF16 and MS_F16; double for MS_F64
 *   stream     CUDA: the cudaStream_t to launch on (the call returns before the work is done);
 *              CPU: NULL for one thread, or a pointer to an ms_threads
 *   status     MS_OK, or one of the codes below; nothing was written if a code other than MS_LAUNCH returns
 *   sums       are added in an order that depends on the sizes only: the same call twice gives the same
 *              bits, whatever the number of threads or multiprocessors
 */
#ifndef MS_BASE_H
#define MS_BASE_H

#include <stdint.h>

#ifdef __cplusplus
#define MS_C extern "C"
#else
#define MS_C
#endif

#define MS_API MS_C __attribute__((visibility("default")))
#define MS_ENTRY(name, parameters) \
    MS_API int ms_cpu_##name parameters; \
    MS_API int ms_cuda_##name parameters;

enum ms_dtype { MS_F32 = 0, MS_F64 = 1, MS_BF16 = 2, MS_F16 = 3 };

enum ms_status {
    MS_OK = 0,
    MS_BAD_DTYPE = 1,  /* this operator has no form for that element type on this device */
    MS_BAD_SIZE = 2,   /* a negative size, or a row longer than its stride */
    MS_BAD_POINTER = 3,/* a pointer that must be given is NULL */
    MS_LAUNCH = 4      /* CUDA refused the launch; cudaGetLastError was consumed */
};

/* How CPU code spreads `count` independent pieces over threads: run calls body(begin, end, context) for
 * disjoint ranges that cover 0..count, none shorter than `grain` except the last. */
typedef struct ms_threads {
    void (*run)(int64_t count, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context);
} ms_threads;

#endif
