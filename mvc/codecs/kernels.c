/* The innermost loops of mvc.codecs.words. That module describes them and has the same in numpy.

   Words are unsigned and little-endian, of 1, 2, 4 or 8 bytes. Marks are a bitmap, packed as by
   numpy: the bit of the first word is the highest one. Each function checks the sizes of its
   buffers before it accesses them, and has no reference to them after it returns.

   Arithmetic uses the vector types of GCC and clang, which are the same for all CPUs. Only moving
   bytes within a vector needs instructions of a CPU: SSSE3 on x86-64, NEON on AArch64. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if !defined(__GNUC__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "without vectors of little-endian words numpy is as fast"
#endif

typedef uint8_t vec1 __attribute__((vector_size(16)));
typedef uint16_t vec2 __attribute__((vector_size(16)));
typedef uint32_t vec4 __attribute__((vector_size(16)));
typedef uint64_t vec8 __attribute__((vector_size(16)));
typedef int8_t signed1 __attribute__((vector_size(16)));
typedef int16_t signed2 __attribute__((vector_size(16)));
typedef int32_t signed4 __attribute__((vector_size(16)));
typedef int64_t signed8 __attribute__((vector_size(16)));

#if defined(__x86_64__)
#include <tmmintrin.h>
#define FAST __attribute__((target("ssse3,popcnt")))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define FAST
#else
#error "without these instructions numpy is as fast"
#endif
#define INLINED static inline __attribute__((always_inline)) FAST

#if defined(__x86_64__)
INLINED vec1 shuffled(vec1 bytes, vec1 order) {
    return (vec1)_mm_shuffle_epi8((__m128i)bytes, (__m128i)order);
}
INLINED vec1 evens(vec1 one, vec1 other) {
    const __m128i low = _mm_set1_epi16(0xFF);
    return (vec1)_mm_packus_epi16(_mm_and_si128((__m128i)one, low),
                                  _mm_and_si128((__m128i)other, low));
}
INLINED vec1 odds(vec1 one, vec1 other) {
    return (vec1)_mm_packus_epi16(_mm_srli_epi16((__m128i)one, 8),
                                  _mm_srli_epi16((__m128i)other, 8));
}
INLINED vec1 first_halves(vec1 one, vec1 other) {
    return (vec1)_mm_unpacklo_epi8((__m128i)one, (__m128i)other);
}
INLINED vec1 second_halves(vec1 one, vec1 other) {
    return (vec1)_mm_unpackhi_epi8((__m128i)one, (__m128i)other);
}
/* A bitmap of 16 bytes that are 0 or 255. The bits of the first 8 are in the low byte. */
INLINED unsigned marked(vec1 flags) {
    const vec1 order = {7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8};
    return (unsigned)_mm_movemask_epi8((__m128i)shuffled(flags, order));
}
#else
INLINED vec1 shuffled(vec1 bytes, vec1 order) {
    return (vec1)vqtbl1q_u8((uint8x16_t)bytes, (uint8x16_t)order);
}
INLINED vec1 evens(vec1 one, vec1 other) {
    return (vec1)vuzp1q_u8((uint8x16_t)one, (uint8x16_t)other);
}
INLINED vec1 odds(vec1 one, vec1 other) {
    return (vec1)vuzp2q_u8((uint8x16_t)one, (uint8x16_t)other);
}
INLINED vec1 first_halves(vec1 one, vec1 other) {
    return (vec1)vzip1q_u8((uint8x16_t)one, (uint8x16_t)other);
}
INLINED vec1 second_halves(vec1 one, vec1 other) {
    return (vec1)vzip2q_u8((uint8x16_t)one, (uint8x16_t)other);
}
INLINED unsigned marked(vec1 flags) {
    const vec1 bits = {128, 64, 32, 16, 8, 4, 2, 1, 128, 64, 32, 16, 8, 4, 2, 1};
    uint8x16_t found = (uint8x16_t)(flags & bits);
    return vaddv_u8(vget_low_u8(found)) | (unsigned)vaddv_u8(vget_high_u8(found)) << 8;
}
#endif

enum { ADD, SUBTRACT, XOR };

#define BLOCK 1024 /* words that are processed at once, to stay in the L1 cache */

/* For every bitmap of 8 words of 1 or 2 bytes, or of 4 words of 4 bytes: the order of bytes that
   spreads consecutive words to the marked places, or gathers the words from these places. */
static uint8_t spread1[256][16], spread2[256][16], spread4[16][16];
static uint8_t gather1[256][16], gather2[256][16], gather4[16][16];

static void fill(uint8_t (*spread)[16], uint8_t (*gather)[16], int lanes, int width) {
    for (int marks = 0; marks < 1 << lanes; marks++) {
        int marked = 0;
        memset(spread[marks], 0x80, 16); /* a lane of zeros */
        memset(gather[marks], 0x80, 16);
        for (int lane = 0; lane < lanes; lane++) {
            if (marks >> (lanes - 1 - lane) & 1) {
                for (int byte = 0; byte < width; byte++) {
                    spread[marks][lane * width + byte] = (uint8_t)(marked * width + byte);
                    gather[marks][marked * width + byte] = (uint8_t)(lane * width + byte);
                }
                marked++;
            }
        }
    }
}

INLINED vec1 load(const uint8_t *from) {
    vec1 bytes;
    memcpy(&bytes, from, 16);
    return bytes;
}

INLINED void store(uint8_t *to, vec1 bytes) { memcpy(to, &bytes, 16); }

INLINED vec1 moved(vec1 state, vec1 delta, int op, int width) {
    if (op == XOR) {
        return state ^ delta;
    }
    if (width == 1) {
        return op == ADD ? state + delta : state - delta;
    }
    if (width == 2) {
        return (vec1)(op == ADD ? (vec2)state + (vec2)delta : (vec2)state - (vec2)delta);
    }
    if (width == 4) {
        return (vec1)(op == ADD ? (vec4)state + (vec4)delta : (vec4)state - (vec4)delta);
    }
    return (vec1)(op == ADD ? (vec8)state + (vec8)delta : (vec8)state - (vec8)delta);
}

INLINED uint64_t word_at(const uint8_t *at, int width) {
    uint64_t word = 0;
    memcpy(&word, at, width);
    return word;
}

INLINED void move(uint8_t *restrict state, const uint8_t *restrict words,
                  const uint8_t *restrict marks, Py_ssize_t size, Py_ssize_t count, int op,
                  int width) {
    Py_ssize_t at = 0, next = 0; /* in the state, in the words */
    /* A load may read up to 16 bytes too many, so the last words are left to the next loop. */
    Py_ssize_t full = width == 8 ? 0 : size - 16;
    for (; at < full && next + 16 <= count; at += 8) {
        unsigned byte = marks[at / 8];
        uint8_t *place = state + at * width;
        if (width == 4) {
            vec1 delta = shuffled(load(words + next * 4), load(spread4[byte >> 4]));
            store(place, moved(load(place), delta, op, 4));
            delta = load(words + (next + __builtin_popcount(byte >> 4)) * 4);
            delta = shuffled(delta, load(spread4[byte & 15]));
            store(place + 16, moved(load(place + 16), delta, op, 4));
        } else if (width == 2) {
            vec1 delta = shuffled(load(words + next * 2), load(spread2[byte]));
            store(place, moved(load(place), delta, op, 2));
        } else {
            vec1 delta = shuffled(load(words + next), load(spread1[byte]));
            vec8 half = {word_at(place, 8), 0};
            half = (vec8)moved((vec1)half, delta, op, 1);
            memcpy(place, &half, 8);
        }
        next += __builtin_popcount(byte);
    }
    for (; at < size; at++) {
        if (marks[at / 8] >> (7 - at % 8) & 1) {
            uint64_t old = word_at(state + at * width, width);
            uint64_t delta = word_at(words + next++ * width, width);
            old = op == ADD ? old + delta : op == SUBTRACT ? old - delta : old ^ delta;
            memcpy(state + at * width, &old, width);
        }
    }
}

#define OPERATIONS(width)                                                                        \
    FAST static void move##width(uint8_t *state, const uint8_t *words, const uint8_t *marks,     \
                                 Py_ssize_t size, Py_ssize_t count, int op) {                    \
        if (op == ADD) {                                                                         \
            move(state, words, marks, size, count, ADD, width);                                  \
        } else if (op == SUBTRACT) {                                                             \
            move(state, words, marks, size, count, SUBTRACT, width);                             \
        } else {                                                                                 \
            move(state, words, marks, size, count, XOR, width);                                  \
        }                                                                                        \
    }

OPERATIONS(1)
OPERATIONS(2)
OPERATIONS(4)
OPERATIONS(8)

#define NOT_ZERO(vec) (vec1)((vec)words != (vec){0})

INLINED vec1 not_zero(vec1 words, int width) {
    return width == 1   ? NOT_ZERO(vec1)
           : width == 2 ? NOT_ZERO(vec2)
           : width == 4 ? NOT_ZERO(vec4)
                        : NOT_ZERO(vec8);
}

/* Computes the delta from ``base`` to ``new``, and the marks of its nonzero words. Returns the
   number of nonzero words. */
INLINED Py_ssize_t differ(const uint8_t *restrict new, const uint8_t *restrict base,
                          uint8_t *restrict out, uint8_t *restrict marks, Py_ssize_t size, int op,
                          int width) {
    Py_ssize_t found = 0, at = 0;
    for (; at + 16 <= size; at += 16) {
        vec1 flags[8];
        for (int p = 0; p < width; p++) {
            Py_ssize_t place = at * width + p * 16;
            vec1 delta = moved(load(new + place), load(base + place), op, width);
            store(out + place, delta);
            flags[p] = not_zero(delta, width);
        }
        /* The even bytes of two vectors of flags are one vector of flags of half the width. */
        for (int left = width / 2; left; left /= 2) {
            for (int p = 0; p < left; p++) {
                flags[p] = evens(flags[2 * p], flags[2 * p + 1]);
            }
        }
        uint16_t bits = (uint16_t)marked(flags[0]);
        memcpy(marks + at / 8, &bits, 2);
        found += __builtin_popcount(bits);
    }
    for (; at < size; at++) {
        uint64_t word = word_at(new + at * width, width), old = word_at(base + at * width, width);
        word = op == XOR ? word ^ old : word - old;
        memcpy(out + at * width, &word, width);
        unsigned bit = word_at(out + at * width, width) != 0;
        marks[at / 8] = (uint8_t)((at % 8 ? marks[at / 8] : 0) | bit << (7 - at % 8));
        found += bit;
    }
    return found;
}

#define DIFFERENCES(width)                                                                       \
    FAST static Py_ssize_t differ##width(const uint8_t *new, const uint8_t *base, uint8_t *out,  \
                                         uint8_t *marks, Py_ssize_t size, int op) {              \
        return op == XOR ? differ(new, base, out, marks, size, XOR, width)                       \
                         : differ(new, base, out, marks, size, SUBTRACT, width);                 \
    }

DIFFERENCES(1)
DIFFERENCES(2)
DIFFERENCES(4)
DIFFERENCES(8)

/* Copies the marked ones of ``size`` words, a multiple of 8, to ``block``, which must have room for
   16 more bytes. After the words, 16 more bytes must be readable. */
INLINED Py_ssize_t gather(const uint8_t *restrict words, const uint8_t *restrict marks,
                          uint8_t *restrict block, Py_ssize_t size, int width) {
    Py_ssize_t n = 0;
    for (Py_ssize_t at = 0; at < size; at += 8) {
        unsigned byte = marks[at / 8];
        if (width == 4) {
            store(block + n * 4, shuffled(load(words + at * 4), load(gather4[byte >> 4])));
            n += __builtin_popcount(byte >> 4);
            store(block + n * 4, shuffled(load(words + at * 4 + 16), load(gather4[byte & 15])));
            n += __builtin_popcount(byte & 15);
        } else {
            const uint8_t *order = width == 2 ? gather2[byte] : gather1[byte];
            store(block + n * width, shuffled(load(words + at * width), load(order)));
            n += __builtin_popcount(byte);
        }
    }
    return n;
}

#define UNFOLDED(vec) (vec1)(((vec)words >> 1) ^ -((vec)words & 1))

INLINED vec1 unfolded(vec1 words, int width) {
    return width == 1   ? UNFOLDED(vec1)
           : width == 2 ? UNFOLDED(vec2)
           : width == 4 ? UNFOLDED(vec4)
                        : UNFOLDED(vec8);
}

/* A comparison of vectors is -1 in the lanes where it is true. */
#define ZIGZAGGED(vec, with_sign) \
    (vec1)(((vec)words + (vec)words) ^ (vec)((with_sign)words < (with_sign){0}))

INLINED vec1 zigzagged(vec1 words, int width) {
    return width == 1   ? ZIGZAGGED(vec1, signed1)
           : width == 2 ? ZIGZAGGED(vec2, signed2)
           : width == 4 ? ZIGZAGGED(vec4, signed4)
                        : ZIGZAGGED(vec8, signed8);
}

/* The planes of ``count`` words, a multiple of 16. They begin at intervals of ``stride`` bytes. */
INLINED void split(const uint8_t *restrict words, uint8_t *restrict out, Py_ssize_t stride,
                   Py_ssize_t count, int folded, int width) {
    for (Py_ssize_t i = 0; i < count; i += 16) {
        vec1 part[8], next[8];
        for (int p = 0; p < width; p++) {
            part[p] = load(words + i * width + p * 16);
            part[p] = folded ? zigzagged(part[p], width) : part[p];
        }
        /* The inverse of ``join``: even bytes go to the first half, odd bytes to the second. */
        for (int size = 1; size < width; size *= 2) {
            for (int p = 0; p < width / 2; p++) {
                next[p] = evens(part[2 * p], part[2 * p + 1]);
                next[p + width / 2] = odds(part[2 * p], part[2 * p + 1]);
            }
            memcpy(part, next, sizeof(part));
        }
        for (int p = 0; p < width; p++) {
            store(out + p * stride + i, part[p]);
        }
    }
}

/* The words whose bytes are the planes. If a plane is NULL, all its bytes are its value. ``count``
   is a multiple of 16. */
INLINED void join(uint8_t *restrict words, const uint8_t *const *planes, const int *value,
                  Py_ssize_t count, int folded, int width) {
    for (Py_ssize_t i = 0; i < count; i += 16) {
        vec1 part[8], next[8];
        for (int p = 0; p < width; p++) {
            part[p] = planes[p] ? load(planes[p] + i) : (vec1){0} + (uint8_t)value[p];
        }
        /* Repeated interleaving of the first half of the planes with the second half puts the
           bytes of each word side by side. */
        for (int size = 1; size < width; size *= 2) {
            for (int p = 0; p < width / 2; p++) {
                next[2 * p] = first_halves(part[p], part[p + width / 2]);
                next[2 * p + 1] = second_halves(part[p], part[p + width / 2]);
            }
            memcpy(part, next, sizeof(part));
        }
        for (int p = 0; p < width; p++) {
            part[p] = folded ? unfolded(part[p], width) : part[p];
            store(words + i * width + p * 16, part[p]);
        }
    }
}

#define PLANES(T, width)                                                                         \
    FAST static Py_ssize_t split##width(const uint8_t *restrict words,                           \
                                        const uint8_t *restrict marks, uint8_t *restrict out,    \
                                        Py_ssize_t count, int folded) {                          \
        Py_ssize_t j = 0;                                                                        \
        T block[BLOCK + 16];                                                                     \
        for (Py_ssize_t from = 0; from < count; from += BLOCK) {                                 \
            Py_ssize_t some = count - from < BLOCK ? count - from : BLOCK, n = some;             \
            const uint8_t *at = words + from * width;                                            \
            if (!marks) {                                                                        \
                memcpy(block, at, some * width);                                                 \
            } else {                                                                             \
                /* A load reads 16 bytes too many at most. */                                    \
                Py_ssize_t fast = width == 8 ? 0 : some == BLOCK && from + BLOCK + 16 < count    \
                                                     ? BLOCK : 0;                                \
                n = gather(at, marks + from / 8, (uint8_t *)block, fast, width);                 \
                for (Py_ssize_t i = fast; i < some; i++) {                                       \
                    if (marks[(from + i) / 8] >> (7 - i % 8) & 1) {                              \
                        block[n++] = (T)word_at(at + i * width, width);                          \
                    }                                                                            \
                }                                                                                \
            }                                                                                    \
            Py_ssize_t sure = n / 16 * 16;                                                       \
            if (folded) {                                                                        \
                split((uint8_t *)block, out + j, count, sure, 1, width);                         \
            } else {                                                                             \
                split((uint8_t *)block, out + j, count, sure, 0, width);                         \
            }                                                                                    \
            for (Py_ssize_t i = sure; i < n; i++) {                                              \
                T sign = (T)(folded ? 0 - (block[i] >> (8 * width - 1)) : 0);                    \
                T word = (T)((T)(block[i] << folded) ^ sign);                                    \
                for (int p = 0; p < width; p++) {                                                \
                    out[p * count + j + i] = (uint8_t)(word >> 8 * p);                           \
                }                                                                                \
            }                                                                                    \
            j += n;                                                                              \
        }                                                                                        \
        return j;                                                                                \
    }                                                                                            \
    FAST static void join##width(uint8_t *restrict words, const uint8_t *const *planes,          \
                                 const int *value, Py_ssize_t count, int folded) {               \
        Py_ssize_t sure = count / 16 * 16;                                                       \
        if (folded) {                                                                            \
            join(words, planes, value, sure, 1, width);                                          \
        } else {                                                                                 \
            join(words, planes, value, sure, 0, width);                                          \
        }                                                                                        \
        for (Py_ssize_t i = sure; i < count; i++) {                                              \
            T word = 0;                                                                          \
            for (int p = 0; p < width; p++) {                                                    \
                word |= (T)((T)(planes[p] ? planes[p][i] : value[p]) << 8 * p);                  \
            }                                                                                    \
            word = folded ? (T)(word >> 1 ^ (T)(0 - (word & 1))) : word;                         \
            memcpy(words + i * width, &word, width);                                             \
        }                                                                                        \
    }

PLANES(uint8_t, 1)
PLANES(uint16_t, 2)
PLANES(uint32_t, 4)
PLANES(uint64_t, 8)

#define BY_WIDTH(width, call, ...)                                                               \
    (width == 1   ? call##1(__VA_ARGS__)                                                         \
     : width == 2 ? call##2(__VA_ARGS__)                                                         \
     : width == 4 ? call##4(__VA_ARGS__)                                                         \
                  : call##8(__VA_ARGS__))

static int is_width(Py_ssize_t width) {
    return width == 1 || width == 2 || width == 4 || width == 8;
}

/* How many of ``size`` words are marked; -1 if the bitmap has a different length. */
FAST static Py_ssize_t count_marks(const Py_buffer *marks, Py_ssize_t size) {
    const uint8_t *bits = marks->buf;
    Py_ssize_t found = 0;
    if (marks->len != (size + 7) / 8 || (size % 8 && bits[marks->len - 1] & 0xFF >> size % 8)) {
        return -1;
    }
    Py_ssize_t i = 0;
    for (; i + 8 <= marks->len; i += 8) {
        found += __builtin_popcountll(word_at(bits + i, 8));
    }
    for (; i < marks->len; i++) {
        found += __builtin_popcount(bits[i]);
    }
    return found;
}

static PyObject *py_move(PyObject *self, PyObject *args) {
    Py_buffer state, words, marks;
    PyObject *result = NULL;
    int width, op;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*y*y*ii", &state, &words, &marks, &width, &op)) {
        return NULL;
    }
    Py_ssize_t size = is_width(width) ? state.len / width : 0, count = -1;
    if (is_width(width) && size * width == state.len) {
        count = count_marks(&marks, size);
    }
    if (count < 0 || count * width != words.len || op < ADD || op > XOR) {
        PyErr_SetString(PyExc_ValueError, "state, words and marks do not fit");
    } else {
        Py_BEGIN_ALLOW_THREADS
        BY_WIDTH(width, move, state.buf, words.buf, marks.buf, size, count, op);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&state);
    PyBuffer_Release(&words);
    PyBuffer_Release(&marks);
    return result;
}

static PyObject *py_differ(PyObject *self, PyObject *args) {
    Py_buffer new, base, out, marks;
    PyObject *result = NULL;
    int width, op;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*w*w*ii", &new, &base, &out, &marks, &width, &op)) {
        return NULL;
    }
    Py_ssize_t found, size = is_width(width) ? new.len / width : 0;
    if (!is_width(width) || size * width != new.len || base.len != new.len ||
        out.len != new.len || marks.len != (size + 7) / 8 || (op != SUBTRACT && op != XOR)) {
        PyErr_SetString(PyExc_ValueError, "new, base, delta and marks do not fit");
    } else {
        Py_BEGIN_ALLOW_THREADS
        found = BY_WIDTH(width, differ, new.buf, base.buf, out.buf, marks.buf, size, op);
        Py_END_ALLOW_THREADS
        result = PyLong_FromSsize_t(found);
    }
    PyBuffer_Release(&new);
    PyBuffer_Release(&base);
    PyBuffer_Release(&out);
    PyBuffer_Release(&marks);
    return result;
}

static PyObject *py_join(PyObject *self, PyObject *args) {
    Py_buffer words, held[8];
    PyObject *planes, *result = NULL;
    const uint8_t *at[8];
    int folded, value[8], taken = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*O!p", &words, &PyTuple_Type, &planes, &folded)) {
        return NULL;
    }
    Py_ssize_t width = PyTuple_Size(planes), count = is_width(width) ? words.len / width : 0;
    int sound = is_width(width) && count * width == words.len;
    for (int p = 0; sound && p < width; p++) {
        PyObject *plane = PyTuple_GetItem(planes, p);
        at[p] = NULL;
        value[p] = 0;
        if (PyLong_Check(plane)) {
            value[p] = (int)PyLong_AsLong(plane);
            sound = value[p] >= 0 && value[p] < 256;
        } else if (PyObject_GetBuffer(plane, &held[taken], PyBUF_SIMPLE) == 0) {
            at[p] = held[taken].buf;
            sound = held[taken++].len == count;
        } else {
            sound = 0;
        }
    }
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        BY_WIDTH(width, join, words.buf, at, value, count, folded);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "words and planes do not fit");
    }
    while (taken) {
        PyBuffer_Release(&held[--taken]);
    }
    PyBuffer_Release(&words);
    return result;
}

static PyObject *py_split(PyObject *self, PyObject *args) {
    Py_buffer words, marks, out;
    PyObject *result = NULL;
    int width, folded;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*z*w*ip", &words, &marks, &out, &width, &folded)) {
        return NULL;
    }
    Py_ssize_t found = 0, count = is_width(width) ? words.len / width : 0;
    if (!is_width(width) || count * width != words.len || out.len != words.len ||
        (marks.buf != NULL && count_marks(&marks, count) < 0)) {
        PyErr_SetString(PyExc_ValueError, "words, marks and planes do not fit");
    } else {
        Py_BEGIN_ALLOW_THREADS
        found = BY_WIDTH(width, split, words.buf, marks.buf, out.buf, count, folded);
        Py_END_ALLOW_THREADS
        result = PyLong_FromSsize_t(found);
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&marks);
    PyBuffer_Release(&out);
    return result;
}

/* Sorts ``at``, positions in ``keys``, stably by their keys, and counts each key. */
FAST static int sort(const uint8_t *at, Py_ssize_t size, const Py_buffer *keys, uint8_t *out,
                int64_t *found, Py_ssize_t kinds) {
    const uint8_t *key = keys->buf;
    Py_ssize_t next[256] = {0};
    for (Py_ssize_t i = 0; i < size; i++) {
        uint64_t place = word_at(at + i * 8, 8);
        if (place >= (uint64_t)keys->len || key[place] >= kinds) {
            return 0;
        }
        found[key[place]]++;
    }
    for (Py_ssize_t kind = 1; kind < kinds; kind++) {
        next[kind] = next[kind - 1] + found[kind - 1];
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        uint64_t place = word_at(at + i * 8, 8);
        if (place >= (uint64_t)keys->len || next[key[place]] >= size) {
            return 0; /* another thread has changed the bytes */
        }
        memcpy(out + next[key[place]]++ * 8, &place, 8);
    }
    return 1;
}

static PyObject *py_sort(PyObject *self, PyObject *args) {
    Py_buffer at, keys, out, counts;
    PyObject *result = NULL;
    int sound;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*w*w*", &at, &keys, &out, &counts)) {
        return NULL;
    }
    int64_t found[256] = {0};
    sound = at.len % 8 == 0 && out.len == at.len && counts.len % 8 == 0 &&
            counts.len <= (Py_ssize_t)sizeof(found);
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        sound = sort(at.buf, at.len / 8, &keys, out.buf, found, counts.len / 8);
        Py_END_ALLOW_THREADS
    }
    if (sound) {
        memcpy(counts.buf, found, counts.len);
        result = Py_NewRef(Py_None);
    } else {
        PyErr_SetString(PyExc_ValueError, "positions, keys and counts do not fit");
    }
    PyBuffer_Release(&at);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&out);
    PyBuffer_Release(&counts);
    return result;
}

static PyObject *py_tally(PyObject *self, PyObject *args) {
    Py_buffer data, counts;
    PyObject *result = NULL;
    Py_ssize_t step, length;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*nn", &data, &counts, &step, &length)) {
        return NULL;
    }
    if (counts.len != 256 * (Py_ssize_t)sizeof(int64_t) || step < 1 || length < 0 || length > step) {
        PyErr_SetString(PyExc_ValueError, "counts and blocks do not fit");
    } else {
        /* Four tables in turn: counting the same byte again waits for the previous count. */
        int64_t found[4][256] = {{0}};
        const uint8_t *bytes = data.buf;
        for (Py_ssize_t at = 0; length <= data.len - at; at += step) {
            for (Py_ssize_t i = 0; i < length; i++) {
                found[i % 4][bytes[at + i]]++;
            }
        }
        for (int i = 0; i < 256; i++) {
            found[0][i] += found[1][i] + found[2][i] + found[3][i];
        }
        memcpy(counts.buf, found[0], sizeof(found[0]));
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&counts);
    return result;
}

static PyMethodDef methods[] = {
    {"differ", py_differ, METH_VARARGS, "differ(new, base, delta, marks, width, operation) -> count"},
    {"join", py_join, METH_VARARGS, "join(words, planes, folded)"},
    {"move", py_move, METH_VARARGS, "move(state, words, marks, width, operation)"},
    {"sort", py_sort, METH_VARARGS, "sort(at, keys, out, counts)"},
    {"split", py_split, METH_VARARGS, "split(words, marks, planes, width, folded) -> count"},
    {"tally", py_tally, METH_VARARGS, "tally(data, counts, step, length)"},
    {NULL, NULL, 0, NULL},
};

static int begin(PyObject *self) {
    (void)self;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("ssse3") || !__builtin_cpu_supports("popcnt")) {
        PyErr_SetString(PyExc_ImportError, "this processor lacks SSSE3 or POPCNT");
        return -1;
    }
#endif
    fill(spread1, gather1, 8, 1);
    fill(spread2, gather2, 8, 2);
    fill(spread4, gather4, 4, 4);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, begin}, {0, NULL}};

static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT,
                                    .m_name = "_kernels",
                                    .m_size = 0,
                                    .m_methods = methods,
                                    .m_slots = slots};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&module); }
