// Bias + GeLU (tanh form) and SwiGLU; contract in ms/activation.h.
//
// Traffic  GeLU 2 elements a value forward and 3 backward, SwiGLU 3 and 5; bias comes from the caches.
// Launch   a block owns 256 packs of columns and walks down the rows of its group, so that strides need
//          no division and the sums of dbias stay in registers. Dense tensors without a bias are one long row.
// Tested against engine/ops/activation.py.
#include "ms/activation.h"

#include "common.cuh"

namespace ms {

constexpr int kThreads = 256;
constexpr double kRoot = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kCubic = 0.044715;

template <class T> __device__ inline wide_t<T> gelu(wide_t<T> z) {
    using W = wide_t<T>;
    return z * sigmoid<T>(W(2 * kRoot) * z * (W(1) + W(kCubic) * z * z));
}

template <class T> __device__ inline wide_t<T> gelu_slope(wide_t<T> z) {
    using W = wide_t<T>;
    W square = z * z, p = sigmoid<T>(W(2 * kRoot) * z * (W(1) + W(kCubic) * square));
    return p + z * p * (W(1) - p) * W(2 * kRoot) * (W(1) + W(3 * kCubic) * square);
}

// First column of this thread's pack.
template <int V> __device__ inline int64_t own_column() {
    return (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * V;
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    gelu_forward(const T* x, const T* bias, T* y, int64_t rows, int64_t cols, int64_t stride) {
    const int64_t c = own_column<V>();
    if (c >= cols) return;
    Pack<T, V> b{};
    if (bias != nullptr) b = load<T, V>(bias + c);
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        Pack<T, V> a = load<T, V>(x + row * stride + c);
#pragma unroll
        for (int k = 0; k < V; k++) {
            wide_t<T> z = widen(a.v[k]);
            a.v[k] = narrow<T>(gelu<T>(bias != nullptr ? z + widen(b.v[k]) : z));
        }
        store<T, V>(y + row * cols + c, a);
    }
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    gelu_backward(const T* dy, const T* x, const T* bias, T* dx, wide_t<T>* partial, int64_t rows,
                  int64_t cols, int64_t stride, int64_t dstride) {
    using W = wide_t<T>;
    const int64_t c = own_column<V>();
    if (c >= cols) return;
    Pack<T, V> b{};
    if (bias != nullptr) b = load<T, V>(bias + c);
    W sums[V] = {};
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        Pack<T, V> a = load<T, V>(x + row * stride + c), g = load<T, V>(dy + row * cols + c);
#pragma unroll
        for (int k = 0; k < V; k++) {
            W z = widen(a.v[k]);
            a.v[k] = narrow<T>(widen(g.v[k]) * gelu_slope<T>(bias != nullptr ? z + widen(b.v[k]) : z));
            sums[k] += widen(a.v[k]);
        }
        store<T, V>(dx + row * dstride + c, a);
    }
    if (partial == nullptr) return;
#pragma unroll
    for (int k = 0; k < V; k++) partial[int64_t(blockIdx.y) * cols + c + k] = sums[k];
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    swiglu_forward(const T* gate, const T* up, T* y, int64_t rows, int64_t cols, int64_t stride) {
    const int64_t c = own_column<V>();
    if (c >= cols) return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        Pack<T, V> a = load<T, V>(gate + row * stride + c), b = load<T, V>(up + row * stride + c);
#pragma unroll
        for (int k = 0; k < V; k++) {
            wide_t<T> g = widen(a.v[k]);
            a.v[k] = narrow<T>(g * sigmoid<T>(g) * widen(b.v[k]));
        }
        store<T, V>(y + row * cols + c, a);
    }
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t rows,
                    int64_t cols, int64_t stride, int64_t dstride) {
    using W = wide_t<T>;
    const int64_t c = own_column<V>();
    if (c >= cols) return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        Pack<T, V> a = load<T, V>(gate + row * stride + c), b = load<T, V>(up + row * stride + c);
        Pack<T, V> d = load<T, V>(dy + row * cols + c);
#pragma unroll
        for (int k = 0; k < V; k++) {
            W grad = widen(d.v[k]), g = widen(a.v[k]), u = widen(b.v[k]), p = sigmoid<T>(g);
            b.v[k] = narrow<T>(grad * g * p);
            a.v[k] = narrow<T>(grad * u * p * (W(1) + g * (W(1) - p)));
        }
        store<T, V>(dup + row * dstride + c, b);
        store<T, V>(dgate + row * dstride + c, a);
    }
}

// Strips of columns by groups of rows: about 2048 blocks, or the groups that column sums need.
template <int V> dim3 grid_of(int64_t rows, int64_t cols, int64_t groups = 0) {
    int64_t strips = (cols + kThreads * V - 1) / (kThreads * V);
    if (groups == 0) groups = strips < 2048 ? (2048 + strips - 1) / strips : 1;
    if (groups > rows) groups = rows;
    return dim3(unsigned(strips), unsigned(groups > 65535 ? 65535 : groups));
}

// A dense matrix as one row, for elementwise work without a bias.
inline void flatten(int64_t& rows, int64_t& cols, int64_t& a, int64_t& b) {
    if (a != cols || b != cols) return;
    cols = a = b = rows * cols;
    rows = 1;
}

}  // namespace ms

using namespace ms;

int ms_cuda_gelu_forward(const void* x, const void* bias, void* y, int64_t rows, int64_t cols,
                         int64_t x_stride, int dtype, void* stream) {
    if (rows < 0 || cols < 1 || x_stride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!x || !y) return MS_BAD_POINTER;
    int64_t same = cols;
    if (!bias) flatten(rows, cols, x_stride, same);
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        bool packs = packs_fit<T>(cols, x_stride, x, bias, y);
        auto kernel = packs ? gelu_forward<T, kPack<T>> : gelu_forward<T, 1>;
        dim3 grid = packs ? grid_of<kPack<T>>(rows, cols) : grid_of<1>(rows, cols);
        MS_RUN(kernel, grid, kThreads, stream, (const T*)x, (const T*)bias, (T*)y, rows, cols,
                  x_stride);
        return launched();
    });
}

int ms_cuda_gelu_backward(const void* dy, const void* x, const void* bias, void* dx, void* dbias,
                          void* scratch, int64_t rows, int64_t cols, int64_t x_stride,
                          int64_t dx_stride, int dtype, void* stream) {
    if (rows < 0 || cols < 1 || x_stride < cols || dx_stride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!dy || !x || !dx || (dbias && !scratch)) return MS_BAD_POINTER;
    if (!bias && !dbias) flatten(rows, cols, x_stride, dx_stride);
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        W* partial = dbias ? (W*)scratch : nullptr;
        int64_t groups = dbias ? column_groups(rows, cols) : 0;
        bool packs = packs_fit<T>(cols, x_stride | dx_stride, dy, x, bias, dx);
        auto kernel = packs ? gelu_backward<T, kPack<T>> : gelu_backward<T, 1>;
        dim3 grid = packs ? grid_of<kPack<T>>(rows, cols, groups) : grid_of<1>(rows, cols, groups);
        MS_RUN(kernel, grid, kThreads, stream, (const T*)dy, (const T*)x, (const T*)bias, (T*)dx,
                  partial, rows, cols, x_stride, dx_stride);
        if (dbias) launch_add_groups(partial, (W*)dbias, groups, cols, cols, stream);
        return launched();
    });
}

int ms_cuda_swiglu_forward(const void* gate, const void* up, void* y, int64_t rows, int64_t cols,
                           int64_t stride, int dtype, void* stream) {
    if (rows < 0 || cols < 1 || stride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!gate || !up || !y) return MS_BAD_POINTER;
    int64_t same = cols;
    flatten(rows, cols, stride, same);
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        bool packs = packs_fit<T>(cols, stride, gate, up, y);
        auto kernel = packs ? swiglu_forward<T, kPack<T>> : swiglu_forward<T, 1>;
        dim3 grid = packs ? grid_of<kPack<T>>(rows, cols) : grid_of<1>(rows, cols);
        MS_RUN(kernel, grid, kThreads, stream, (const T*)gate, (const T*)up, (T*)y, rows, cols,
                  stride);
        return launched();
    });
}

int ms_cuda_swiglu_backward(const void* dy, const void* gate, const void* up, void* dgate, void* dup,
                            int64_t rows, int64_t cols, int64_t stride, int64_t dstride, int dtype,
                            void* stream) {
    if (rows < 0 || cols < 1 || stride < cols || dstride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!dy || !gate || !up || !dgate || !dup) return MS_BAD_POINTER;
    flatten(rows, cols, stride, dstride);
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        bool packs = packs_fit<T>(cols, stride | dstride, dy, gate, up, dgate, dup);
        auto kernel = packs ? swiglu_backward<T, kPack<T>> : swiglu_backward<T, 1>;
        dim3 grid = packs ? grid_of<kPack<T>>(rows, cols) : grid_of<1>(rows, cols);
        MS_RUN(kernel, grid, kThreads, stream, (const T*)dy, (const T*)gate, (const T*)up, (T*)dgate,
                  (T*)dup, rows, cols, stride, dstride);
        return launched();
    });
}
