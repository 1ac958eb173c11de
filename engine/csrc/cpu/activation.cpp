// GeLU (tanh form) with bias, and SwiGLU, on the CPU.
#include "ms/activation.h"

#include "common.hpp"

namespace ms {

constexpr double kRoot = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kCubic = 0.044715;

template <class W> inline W gelu(W z) {
    W u = W(kRoot) * (z + W(kCubic) * z * z * z);
    return z * sigmoid(W(2) * u);  // (1 + tanh u) / 2 = sigmoid(2u)
}

template <class W> inline W gelu_slope(W z) {
    W square = z * z;
    W p = sigmoid(W(2 * kRoot) * z * (W(1) + W(kCubic) * square));
    return p + z * p * (W(1) - p) * W(2 * kRoot) * (W(1) + W(3 * kCubic) * square);
}

template <class T> void gelu_row(const T* x, const T* bias, T* y, int64_t cols) {
    if (bias != nullptr) {
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) y[c] = narrow<T>(gelu(widen(x[c]) + widen(bias[c])));
    } else {
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) y[c] = narrow<T>(gelu(widen(x[c])));
    }
}

template <class T> struct GeluBackward {
    using W = wide_t<T>;
    const T *dy, *x, *bias;
    T* dx;
    int64_t cols, x_stride, dx_stride;

    void row(int64_t r, W* dbias) const {
        const T *grad = dy + r * cols, *in = x + r * x_stride;
        T* out = dx + r * dx_stride;
        if (bias != nullptr) {
#pragma omp simd
            for (int64_t c = 0; c < cols; c++)
                out[c] = narrow<T>(widen(grad[c]) * gelu_slope(widen(in[c]) + widen(bias[c])));
        } else {
#pragma omp simd
            for (int64_t c = 0; c < cols; c++)
                out[c] = narrow<T>(widen(grad[c]) * gelu_slope(widen(in[c])));
        }
        if (dbias != nullptr) {
#pragma omp simd
            for (int64_t c = 0; c < cols; c++) dbias[c] += widen(out[c]);
        }
    }
};

template <class T> void swiglu_row(const T* gate, const T* up, T* y, int64_t cols) {
#pragma omp simd
    for (int64_t c = 0; c < cols; c++) {
        auto g = widen(gate[c]);
        y[c] = narrow<T>(g * sigmoid(g) * widen(up[c]));
    }
}

template <class T>
void swiglu_backward_row(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t cols) {
    using W = wide_t<T>;
#pragma omp simd
    for (int64_t c = 0; c < cols; c++) {
        W d = widen(dy[c]), g = widen(gate[c]), u = widen(up[c]), p = sigmoid(g);
        dup[c] = narrow<T>(d * g * p);
        dgate[c] = narrow<T>(d * u * p * (W(1) + g * (W(1) - p)));
    }
}

}  // namespace ms

using namespace ms;

int ms_cpu_gelu_forward(const void* x, const void* bias, void* y, int64_t rows, int64_t cols,
                        int64_t x_stride, int dtype, void* stream) {
    if (rows < 0 || cols < 1 || x_stride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!x || !y) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        spread(stream, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++)
                gelu_row((const T*)x + r * x_stride, (const T*)bias, (T*)y + r * cols, cols);
        });
        return int(MS_OK);
    });
}

int ms_cpu_gelu_backward(const void* dy, const void* x, const void* bias, void* dx, void* dbias,
                         void* scratch, int64_t rows, int64_t cols, int64_t x_stride,
                         int64_t dx_stride, int dtype, void* stream) {
    if (rows < 0 || cols < 1 || x_stride < cols || dx_stride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!dy || !x || !dx || (dbias && !scratch)) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        GeluBackward<T> op{(const T*)dy, (const T*)x, (const T*)bias, (T*)dx, cols, x_stride, dx_stride};
        W* partial = (W*)scratch;
        int64_t groups = group_count(rows), each = group_rows(rows);
        spread(stream, groups, 1, [&](int64_t begin, int64_t end) {
            for (int64_t g = begin; g < end; g++) {
                W* sum = dbias ? partial + g * cols : nullptr;
                if (sum) std::memset(sum, 0, sizeof(W) * cols);
                int64_t stop = (g + 1) * each < rows ? (g + 1) * each : rows;
                for (int64_t r = g * each; r < stop; r++) op.row(r, sum);
            }
        });
        if (dbias) add_groups(partial, (W*)dbias, groups, cols, cols);
        return int(MS_OK);
    });
}

int ms_cpu_swiglu_forward(const void* gate, const void* up, void* y, int64_t rows, int64_t cols,
                          int64_t stride, int dtype, void* stream) {
    if (rows < 0 || cols < 1 || stride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!gate || !up || !y) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        spread(stream, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++)
                swiglu_row((const T*)gate + r * stride, (const T*)up + r * stride, (T*)y + r * cols, cols);
        });
        return int(MS_OK);
    });
}

int ms_cpu_swiglu_backward(const void* dy, const void* gate, const void* up, void* dgate, void* dup,
                           int64_t rows, int64_t cols, int64_t stride, int64_t dstride, int dtype,
                           void* stream) {
    if (rows < 0 || cols < 1 || stride < cols || dstride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!dy || !gate || !up || !dgate || !dup) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        spread(stream, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++)
                swiglu_backward_row((const T*)dy + r * cols, (const T*)gate + r * stride,
                                    (const T*)up + r * stride, (T*)dgate + r * dstride,
                                    (T*)dup + r * dstride, cols);
        });
        return int(MS_OK);
    });
}
