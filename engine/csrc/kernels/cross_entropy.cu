// Pieces of the softmax cross-entropy on a divided vocabulary; contract in ms/cross_entropy.h.
//
// Traffic  statistics 1 element a logit: largest and sum in one pass, each thread rescales its sum when it
//          meets a larger logit. Gradient 2 elements a logit; the exponential is computed again, which costs
//          less than storing it (2 more elements).
// Launch   a block a row, 16 bytes a thread and access.
// Tested against engine/ops/cross_entropy.py.
#include "ms/cross_entropy.h"

#include "common.cuh"

namespace ms {

constexpr int kThreads = 512;

template <class W> __device__ inline W lowest() { return -W(INFINITY); }

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    stats_kernel(const T* logits, const int64_t* targets, wide_t<T>* largest, wide_t<T>* total,
                 wide_t<T>* target, int64_t cols, int64_t stride, int64_t first) {
    using W = wide_t<T>;
    const int64_t row = blockIdx.x;
    const T* own = logits + row * stride;
    W most = lowest<W>(), sum = W(0), none = W(0);
    for (int64_t c = int64_t(threadIdx.x) * V; c < cols; c += int64_t(blockDim.x) * V) {
        Pack<T, V> a = load<T, V>(own + c);
        W top = widen(a.v[0]);
#pragma unroll
        for (int k = 1; k < V; k++) top = widen(a.v[k]) > top ? widen(a.v[k]) : top;
        if (top > most) {
            sum *= Math<T>::exp(most - top);  // 0 * exp(-inf) at first
            most = top;
        }
#pragma unroll
        for (int k = 0; k < V; k++) sum += Math<T>::exp(widen(a.v[k]) - most);
    }
    W all = block_max(most);
    sum = most == lowest<W>() && sum == W(0) ? W(0) : sum * Math<T>::exp(most - all);
    block_sum(sum, none);
    if (threadIdx.x != 0) return;
    largest[row] = all;
    total[row] = sum;
    int64_t column = targets[row] - first;
    target[row] = column >= 0 && column < cols ? widen(own[column]) : W(0);
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(const T* logits, const int64_t* targets, const wide_t<T>* largest,
                    const wide_t<T>* total, const wide_t<T>* scale, T* grad, int64_t cols,
                    int64_t stride, int64_t first) {
    using W = wide_t<T>;
    const int64_t row = blockIdx.x, column = targets[row] - first;
    const W most = largest[row], times = scale[0], factor = times / total[row];
    for (int64_t c = int64_t(threadIdx.x) * V; c < cols; c += int64_t(blockDim.x) * V) {
        Pack<T, V> a = load<T, V>(logits + row * stride + c);
#pragma unroll
        for (int k = 0; k < V; k++) {
            W g = Math<T>::exp(widen(a.v[k]) - most) * factor;
            a.v[k] = narrow<T>(c + k == column ? g - times : g);
        }
        store<T, V>(grad + row * stride + c, a);
    }
}

// Whole warps, no more than the row has packs for.
inline int threads_for(int64_t cols, int v) {
    int64_t warps = (cols / v + kWarp - 1) / kWarp;
    return warps * kWarp > kThreads ? kThreads : warps < 1 ? kWarp : int(warps) * kWarp;
}

}  // namespace ms

using namespace ms;

int ms_cuda_cross_entropy_stats(const void* logits, const int64_t* targets, void* largest, void* total,
                                void* target, int64_t rows, int64_t cols, int64_t stride, int64_t first,
                                int dtype, void* stream) {
    if (rows < 0 || cols < 1 || stride < cols || rows > INT32_MAX) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!logits || !targets || !largest || !total || !target) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        bool packs = packs_fit<T>(cols, stride, logits);
        auto kernel = packs ? stats_kernel<T, kPack<T>> : stats_kernel<T, 1>;
        MS_RUN(kernel, unsigned(rows), threads_for(cols, packs ? kPack<T> : 1), stream,
                  (const T*)logits, targets, (W*)largest, (W*)total, (W*)target, cols, stride, first);
        return launched();
    });
}

int ms_cuda_cross_entropy_gradient(const void* logits, const int64_t* targets, const void* largest,
                                   const void* total, const void* scale, void* grad, int64_t rows,
                                   int64_t cols, int64_t stride, int64_t first, int dtype,
                                   void* stream) {
    if (rows < 0 || cols < 1 || stride < cols || rows > INT32_MAX) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!logits || !targets || !largest || !total || !scale || !grad) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        bool packs = packs_fit<T>(cols, stride, logits, grad);
        auto kernel = packs ? gradient_kernel<T, kPack<T>> : gradient_kernel<T, 1>;
        MS_RUN(kernel, unsigned(rows), threads_for(cols, packs ? kPack<T> : 1), stream,
                  (const T*)logits, targets, (const W*)largest, (const W*)total, (const W*)scale,
                  (T*)grad, cols, stride, first);
        return launched();
    });
}
