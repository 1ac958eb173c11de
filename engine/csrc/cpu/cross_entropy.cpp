// Softmax cross-entropy pieces on the CPU: one pass over the row for the largest logit, one (from cache) for
// the sum of exponentials, one for the gradient.
#include "ms/cross_entropy.h"

#include "common.hpp"

namespace ms {

template <class T> struct CrossEntropy {
    using W = wide_t<T>;
    const T* logits;
    const int64_t* targets;
    int64_t cols, stride, first;

    bool holds(int64_t r) const { return targets[r] >= first && targets[r] < first + cols; }

    void stats(int64_t r, W* largest, W* total, W* target) const {
        const T* row = logits + r * stride;
        W most = -std::numeric_limits<W>::infinity(), sum = 0;
#pragma omp simd reduction(max : most)
        for (int64_t c = 0; c < cols; c++) {
            W value = widen(row[c]);
            most = value > most ? value : most;
        }
        // a NaN is not seen by the maximum, but makes the sum NaN, and so the loss
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < cols; c++) sum += exp_of(widen(row[c]) - most);
        largest[r] = most;
        total[r] = sum;
        target[r] = holds(r) ? widen(row[targets[r] - first]) : W(0);
    }

    void gradient(int64_t r, W largest, W total, W scale, T* grad) const {
        const T* row = logits + r * stride;
        T* out = grad + r * stride;
        W factor = scale / total;
        // before the row may be overwritten
        W own = holds(r) ? exp_of(widen(row[targets[r] - first]) - largest) * factor - scale : W(0);
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) out[c] = narrow<T>(exp_of(widen(row[c]) - largest) * factor);
        if (holds(r)) out[targets[r] - first] = narrow<T>(own);
    }
};

}  // namespace ms

using namespace ms;

int ms_cpu_cross_entropy_stats(const void* logits, const int64_t* targets, void* largest, void* total,
                               void* target, int64_t rows, int64_t cols, int64_t stride, int64_t first,
                               int dtype, void* stream) {
    if (rows < 0 || cols < 1 || stride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!logits || !targets || !largest || !total || !target) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        CrossEntropy<T> op{(const T*)logits, targets, cols, stride, first};
        spread(stream, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++) op.stats(r, (W*)largest, (W*)total, (W*)target);
        });
        return int(MS_OK);
    });
}

int ms_cpu_cross_entropy_gradient(const void* logits, const int64_t* targets, const void* largest,
                                  const void* total, const void* scale, void* grad, int64_t rows,
                                  int64_t cols, int64_t stride, int64_t first, int dtype,
                                  void* stream) {
    if (rows < 0 || cols < 1 || stride < cols) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!logits || !targets || !largest || !total || !scale || !grad) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        CrossEntropy<T> op{(const T*)logits, targets, cols, stride, first};
        const W *most = (const W*)largest, *sum = (const W*)total;
        W factor = *(const W*)scale;
        spread(stream, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++) op.gradient(r, most[r], sum[r], factor, (T*)grad);
        });
        return int(MS_OK);
    });
}
