// Norms of rows of any length and alignment: a row is read again instead of being kept. See norm.cu.
#pragma once

#include "common.cuh"
#include "ms/norm.h"

namespace ms {

constexpr int kThreads = 512;

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_any(int kind, const T* x, const T* residual, const T* weight, const T* bias, T* y, T* total,
                wide_t<T>* mean, wide_t<T>* rstd, int64_t cols, wide_t<T> eps) {
    using W = wide_t<T>;
    const int64_t row = blockIdx.x, start = row * cols;
    const T* s = x + start;
    W sum = W(0), none = W(0);
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        T value = s[c];
        if (residual != nullptr) {
            value = narrow<T>(widen(value) + widen(residual[start + c]));
            total[start + c] = value;
        }
        sum += widen(value);
    }
    if (residual != nullptr) s = total + start;  // each thread reads again what it wrote itself
    W centre = W(0);
    if (kind == MS_LAYERNORM) {
        block_sum(sum, none);
        centre = sum / W(cols);
    }
    W power = W(0);
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        W d = widen(s[c]) - centre;
        power += d * d;
    }
    none = W(0);
    block_sum(power, none);
    W scale = W(1) / sqrt(power / W(cols) + eps);
    if (threadIdx.x == 0) {
        rstd[row] = scale;
        if (kind == MS_LAYERNORM) mean[row] = centre;
    }
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        W value = (widen(s[c]) - centre) * scale * widen(weight[c]);
        y[start + c] = narrow<T>(bias != nullptr ? value + widen(bias[c]) : value);
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_any(int kind, const T* dy, const T* dtotal, const T* s, const T* weight,
                 const wide_t<T>* mean, const wide_t<T>* rstd, T* dx, int64_t cols) {
    using W = wide_t<T>;
    const int64_t row = blockIdx.x, start = row * cols;
    const W scale = rstd[row], centre = kind == MS_LAYERNORM ? mean[row] : W(0);
    W along = W(0), plain = W(0);
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        W product = widen(dy[start + c]) * widen(weight[c]);
        along += product * (widen(s[start + c]) - centre) * scale;
        plain += product;
    }
    block_sum(along, plain);
    along /= W(cols);
    plain = kind == MS_LAYERNORM ? plain / W(cols) : W(0);
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        W hat = (widen(s[start + c]) - centre) * scale;
        W d = (widen(dy[start + c]) * widen(weight[c]) - plain - hat * along) * scale;
        T own = narrow<T>(d);
        if (dtotal != nullptr) own = narrow<T>(widen(own) + widen(dtotal[start + c]));
        dx[start + c] = own;
    }
}

// Column sums of a group of rows, a thread a column; runs before backward_any, which may overwrite dy.
template <class T>
__global__ void columns_any(int kind, const T* dy, const T* s, const wide_t<T>* mean,
                            const wide_t<T>* rstd, wide_t<T>* partial, int64_t rows, int64_t cols) {
    using W = wide_t<T>;
    const int64_t c = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (c >= cols) return;
    W dweight = W(0), dbias = W(0);
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        W g = widen(dy[row * cols + c]), centre = kind == MS_LAYERNORM ? mean[row] : W(0);
        dweight += g * (widen(s[row * cols + c]) - centre) * rstd[row];
        dbias += g;
    }
    W* sums = partial + int64_t(blockIdx.y) * 2 * cols;
    sums[c] = dweight;
    sums[cols + c] = dbias;
}

}  // namespace ms
