// LayerNorm and RMSNorm: y = (s - mean) * rstd * weight + bias with s = x + residual; contract in ms/norm.h.
//
// Traffic  forward 2 elements a value (4 with a residual), backward 3 (4): every tensor is read or written
//          once. A row stays in registers between its statistics and its use; weight and bias come from
//          the caches, since all rows share them.
// Launch   forward: a block a row. Backward: as many blocks as fill the GPU, each walks over its rows and
//          keeps the sums of dweight and dbias of its columns in registers; a second kernel adds the
//          blocks' sums in order. 16 bytes a thread and access; up to 4 packs a thread in flight.
// Odd rows (not a multiple of 16 bytes, or longer than 512 threads * 4 packs) take the `any` kernels, which
//          read a row again instead of keeping it.
// Tested against engine/ops/norm.py.
#include "ms/norm.h"

#include "common.cuh"
#include "norm_any.cuh"

namespace ms {

// The packs of one row that a thread keeps, as wide values.
template <class T, int ITEMS> struct Row {
    using W = wide_t<T>;
    static constexpr int V = kPack<T>;
    W v[ITEMS][V];
};

template <class T, int ITEMS>
__global__ void __launch_bounds__(kThreads)
    forward_kept(int kind, const T* x, const T* residual, const T* weight, const T* bias, T* y, T* total,
                 wide_t<T>* mean, wide_t<T>* rstd, int64_t cols, wide_t<T> eps) {
    using W = wide_t<T>;
    constexpr int V = kPack<T>;
    const int64_t row = blockIdx.x, start = row * cols;
    const int packs = int(cols / V);
    Row<T, ITEMS> s;
    W sum = W(0), none = W(0);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        int p = threadIdx.x + i * blockDim.x;
        if (p >= packs) continue;
        Pack<T, V> a = load<T, V>(x + start + p * V);
        if (residual != nullptr) {
            Pack<T, V> b = load<T, V>(residual + start + p * V);
#pragma unroll
            for (int k = 0; k < V; k++) a.v[k] = narrow<T>(widen(a.v[k]) + widen(b.v[k]));
            store<T, V>(total + start + p * V, a);
        }
#pragma unroll
        for (int k = 0; k < V; k++) {
            s.v[i][k] = widen(a.v[k]);
            sum += s.v[i][k];
        }
    }
    W centre = W(0);
    if (kind == MS_LAYERNORM) {
        block_sum(sum, none);
        centre = sum / W(cols);
    }
    W power = W(0);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (int(threadIdx.x + i * blockDim.x) >= packs) continue;
#pragma unroll
        for (int k = 0; k < V; k++) power += (s.v[i][k] - centre) * (s.v[i][k] - centre);
    }
    none = W(0);
    block_sum(power, none);
    W scale = W(1) / sqrt(power / W(cols) + eps);
    if (threadIdx.x == 0) {
        rstd[row] = scale;
        if (kind == MS_LAYERNORM) mean[row] = centre;
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        int p = threadIdx.x + i * blockDim.x;
        if (p >= packs) continue;
        Pack<T, V> w = load<T, V>(weight + p * V), b{}, out;
        if (bias != nullptr) b = load<T, V>(bias + p * V);
#pragma unroll
        for (int k = 0; k < V; k++) {
            W value = (s.v[i][k] - centre) * scale * widen(w.v[k]);
            out.v[k] = narrow<T>(bias != nullptr ? value + widen(b.v[k]) : value);
        }
        store<T, V>(y + start + p * V, out);
    }
}

// dx = rstd * (dy * weight - plain - hat * along) + dtotal, with hat the normalised value and the means
// along = mean(dy * weight * hat), plain = mean(dy * weight) (LayerNorm only).
template <class T, int ITEMS>
__global__ void __launch_bounds__(kThreads)
    backward_kept(int kind, const T* dy, const T* dtotal, const T* s, const T* weight,
                  const wide_t<T>* mean, const wide_t<T>* rstd, T* dx, wide_t<T>* partial, int64_t rows,
                  int64_t cols) {
    using W = wide_t<T>;
    constexpr int V = kPack<T>;
    constexpr bool keep = ITEMS < 4;  // longer rows are read again from the caches: registers run out
    const int packs = int(cols / V);
    W dweight[ITEMS][V] = {}, dbias[ITEMS][V] = {};
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t start = row * cols;
        Pack<T, V> grad[keep ? ITEMS : 1], value[keep ? ITEMS : 1];
        const W scale = rstd[row], centre = kind == MS_LAYERNORM ? mean[row] : W(0);
        auto read = [&](int i) {
            int p = threadIdx.x + i * blockDim.x;
            if (p >= packs) return;
            grad[keep ? i : 0] = load<T, V>(dy + start + p * V);
            value[keep ? i : 0] = load<T, V>(s + start + p * V);
        };
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            if (keep) read(i);
        W along = W(0), plain = W(0);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            int p = threadIdx.x + i * blockDim.x;
            if (p >= packs) continue;
            if (!keep) read(i);
            const Pack<T, V>&own = grad[keep ? i : 0], &in = value[keep ? i : 0];
            Pack<T, V> w = load<T, V>(weight + p * V);
#pragma unroll
            for (int k = 0; k < V; k++) {
                W g = widen(own.v[k]), hat = (widen(in.v[k]) - centre) * scale;
                W product = g * widen(w.v[k]);
                along += product * hat;
                plain += product;
                dweight[i][k] += g * hat;
                dbias[i][k] += g;
            }
        }
        block_sum(along, plain);
        along /= W(cols);
        plain = kind == MS_LAYERNORM ? plain / W(cols) : W(0);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            int p = threadIdx.x + i * blockDim.x;
            if (p >= packs) continue;
            if (!keep) read(i);
            const Pack<T, V>&own = grad[keep ? i : 0], &in = value[keep ? i : 0];
            Pack<T, V> w = load<T, V>(weight + p * V), more{}, out;
            if (dtotal != nullptr) more = load<T, V>(dtotal + start + p * V);
#pragma unroll
            for (int k = 0; k < V; k++) {
                W hat = (widen(in.v[k]) - centre) * scale;
                W d = (widen(own.v[k]) * widen(w.v[k]) - plain - hat * along) * scale;
                out.v[k] = narrow<T>(d);
                if (dtotal != nullptr) out.v[k] = narrow<T>(widen(out.v[k]) + widen(more.v[k]));
            }
            store<T, V>(dx + start + p * V, out);
        }
    }
    W* sums = partial + int64_t(blockIdx.x) * 2 * cols;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        int p = threadIdx.x + i * blockDim.x;
        if (p >= packs) continue;
#pragma unroll
        for (int k = 0; k < V; k++) {
            sums[p * V + k] = dweight[i][k];
            sums[cols + p * V + k] = dbias[i][k];
        }
    }
}

// Threads that hold a row of `packs` packs with ITEMS each: whole warps.
inline int threads_for(int64_t packs, int items) {
    int64_t threads = (packs + items - 1) / items;
    return int((threads + kWarp - 1) / kWarp * kWarp);
}

// The smallest number of packs a thread must keep, of 1, 2, 4; 0 if the row is too long.
inline int items_for(int64_t packs) {
    for (int items = 1; items <= 4; items *= 2)
        if (packs <= int64_t(items) * kThreads) return items;
    return 0;
}

}  // namespace ms

using namespace ms;

int64_t ms_cuda_column_scratch(int64_t rows, int64_t cols, int sums) {
    return column_groups(rows, cols) * cols * sums;
}

int ms_cuda_norm_forward(int kind, const void* x, const void* residual, const void* weight,
                         const void* bias, void* y, void* total, void* mean, void* rstd, int64_t rows,
                         int64_t cols, double eps, int dtype, void* stream) {
    if (rows < 0 || cols < 1 || rows > INT32_MAX) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!x || !weight || !y || !rstd || !residual != !total) return MS_BAD_POINTER;
    if (kind == MS_LAYERNORM && !mean) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        int64_t packs = cols / kPack<T>;
        int items = packs_fit<T>(cols, cols, x, residual, weight, bias, y, total) ? items_for(packs) : 0;
        auto kernel = items == 1   ? forward_kept<T, 1>
                      : items == 2 ? forward_kept<T, 2>
                      : items == 4 ? forward_kept<T, 4>
                                   : forward_any<T>;
        int threads = items ? threads_for(packs, items) : kThreads;
        MS_RUN(kernel, unsigned(rows), threads, stream, kind, (const T*)x, (const T*)residual,
                  (const T*)weight, (const T*)bias, (T*)y, (T*)total, (W*)mean, (W*)rstd, cols, W(eps));
        return launched();
    });
}

int ms_cuda_norm_backward(int kind, const void* dy, const void* dtotal, const void* s,
                          const void* weight, const void* mean, const void* rstd, void* dx,
                          void* dweight, void* dbias, void* scratch, int64_t rows, int64_t cols,
                          int dtype, void* stream) {
    if (rows < 0 || cols < 1 || rows > INT32_MAX) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!dy || !s || !weight || !rstd || !dx || !dweight || !scratch) return MS_BAD_POINTER;
    if (kind == MS_LAYERNORM && !mean) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        W* partial = (W*)scratch;
        int64_t packs = cols / kPack<T>, groups = column_groups(rows, cols);
        int items = packs_fit<T>(cols, cols, dy, dtotal, s, weight, dx) ? items_for(packs) : 0;
        if (items) {
            auto kernel = items == 1   ? backward_kept<T, 1>
                          : items == 2 ? backward_kept<T, 2>
                                       : backward_kept<T, 4>;
            MS_RUN(kernel, unsigned(groups), threads_for(packs, items), stream, kind, (const T*)dy,
                      (const T*)dtotal, (const T*)s, (const T*)weight, (const W*)mean, (const W*)rstd,
                      (T*)dx, partial, rows, cols);
        } else {
            auto columns = columns_any<T>;
            MS_RUN(columns, dim3(unsigned((cols + 255) / 256), unsigned(groups)), 256, stream, kind,
                      (const T*)dy, (const T*)s, (const W*)mean, (const W*)rstd, partial, rows, cols);
            auto kernel = backward_any<T>;
            MS_RUN(kernel, unsigned(rows), kThreads, stream, kind, (const T*)dy, (const T*)dtotal,
                      (const T*)s, (const T*)weight, (const W*)mean, (const W*)rstd, (T*)dx, cols);
        }
        launch_add_groups(partial, (W*)dweight, groups, cols, 2 * cols, stream);
        if (dbias) launch_add_groups(partial + cols, (W*)dbias, groups, cols, 2 * cols, stream);
        return launched();
    });
}
