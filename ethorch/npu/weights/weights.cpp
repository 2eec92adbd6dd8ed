// Compiled decoding of standard weight streams, one symbol at a time (decode.decode_standard), and order.place.
//
// See npu-reference 4.1 and decode.py for the format. For malformed streams the functions return -1, and decode.py creates the
// message.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace {

constexpr int CHUNK = 12;    // bits of a weight chunk's first unary word
constexpr int BALANCE = 8;   // weights can precede zero runs by fewer than this
constexpr int ZDIV_NONE = 6, ZDIV_END = 7, WDIV_RAW = 7;

struct Bits {
  const uint8_t* data;  // followed by 64 readable bytes
  int64_t size;         // in bits
  int64_t at = 0;

  uint64_t peek() const {
    uint64_t word;
    std::memcpy(&word, data + (at >> 3), 8);
    return word >> (at & 7);
  }
  uint32_t take(int count) {
    const uint32_t value = uint32_t(peek() & ((uint64_t(1) << count) - 1));
    at += count;
    return value;
  }
};

struct Palette {
  bool known = false;
  int count = 0, direct = 0, entry_bits = 0;
  int entries[32];

  void read(Bits& bits) {
    known = true;
    direct = int(bits.take(5));
    const int size = int(bits.take(5));
    entry_bits = int(bits.take(3)) + 2;
    count = size ? size + 1 : 0;
    for (int i = 0; i < count; ++i) entries[i] = int(bits.take(entry_bits));
  }
  int index_bits() const {
    int bits = 0;
    while (count && (1 << bits) < count) ++bits;
    return count ? bits : entry_bits;
  }
  int16_t value(int64_t index) const {
    const int64_t folded = index < count ? entries[index] : index - count + direct;
    return int16_t(folded & 1 ? -(folded >> 1) : folded >> 1);
  }
};

struct Slice {
  int64_t weights, runs;
  int wdiv, zdiv;
  bool truncated, raw;
};

// Symbols of one kind: quotients precede their remainders by one round. Unary codes are decoded without branches.
struct Symbols {
  std::vector<int64_t> values;  // those required, and space for the rest of the last chunk
  int64_t wanted = 0, begun = 0, finished = 0, carry = 0;

  void start(int64_t count) {
    if (values.size() < size_t(count) + CHUNK) values.resize(size_t(count) + CHUNK);
    wanted = count;
    begun = finished = carry = 0;
  }
  void quotient(int step, bool ends) {
    carry += step;
    values[size_t(begun)] = carry;
    begun += ends;
    carry = ends ? 0 : carry;
  }
  void remainders(Bits& bits, int64_t until, int width) {
    if (until > wanted) until = wanted;
    for (; finished < until; ++finished) {
      int64_t& value = values[size_t(finished)];
      value = (value << width) + bits.take(width);
    }
  }
};

// False if the slice exceeds the stream.
bool decode_slice(Bits& bits, const Slice& s, Symbols& w, Symbols& z) {
  w.start(s.weights);
  z.start(s.runs);
  const int zero_bits = s.zdiv < 3 ? 12 : 8;
  const int full = s.raw && s.wdiv > 5 ? 8 : CHUNK;
  for (;;) {
    if (bits.at > bits.size) return false;
    const int64_t behind = s.runs ? w.begun - z.begun : 0;
    const bool has_w = w.begun < s.weights && behind < BALANCE, has_z = z.begun < s.runs && behind >= 0;
    const int64_t due_w = w.begun, due_z = z.begun;
    const uint32_t u0 = has_w && !s.raw ? bits.take(CHUNK) : 0;
    if (has_z) {
      const uint32_t unary = bits.take(zero_bits);
      for (int i = 0; i < zero_bits; ++i) z.quotient(unary >> i & 1, !(unary >> i & 1));
    }
    if (has_w && s.raw) {
      for (int i = 0; i < full; ++i) w.quotient(0, true);
    } else if (has_w) {
      uint32_t u1 = bits.take(__builtin_popcount(u0));
      for (int i = 0; i < CHUNK; ++i) {
        const uint32_t some = u0 >> i & 1, two = some & u1;
        w.quotient(int(some + two), s.truncated || !two);
        u1 >>= some;
      }
    }
    w.remainders(bits, due_w, s.wdiv);
    z.remainders(bits, due_z, s.zdiv);
    if (!has_w && !has_z) return bits.at <= bits.size;
  }
}

enum class Decoded { well, malformed, too_wide };

template <typename T>
Decoded decode(Bits& bits, std::vector<T>& out) {
  Palette palette;
  bool fits = true;
  const auto narrow = [&fits](int16_t value) {
    fits &= T(value) == value;
    return T(value);
  };
  Symbols w, z;
  while (bits.size - bits.at >= 3) {
    const int zdiv = int(bits.take(3));
    if (zdiv == ZDIV_END) {
      bits.at = (bits.at + 7) / 8 * 8;
      continue;
    }
    if (zdiv > 3 && zdiv != ZDIV_NONE) return Decoded::malformed;
    const int64_t count = int64_t(bits.take(15)) + 1;
    int wdiv = int(bits.take(3));
    const bool truncated = bits.take(1), leading = bits.take(1);
    if (wdiv == 6) return Decoded::malformed;
    if (leading) palette.read(bits);
    if (bits.at > bits.size || !palette.known) return Decoded::malformed;
    const bool raw = wdiv == WDIV_RAW;
    if (raw) wdiv = palette.index_bits();
    const Slice s{count, zdiv == ZDIV_NONE ? 0 : count + leading, wdiv, zdiv, truncated, raw};
    if (!decode_slice(bits, s, w, z)) return Decoded::malformed;
    const int64_t* run = z.values.data();
    if (s.runs && leading) out.insert(out.end(), size_t(*run++), 0);
    const size_t before = out.size();
    if (!s.runs) {
      out.resize(before + size_t(count));
      for (int64_t i = 0; i < count; ++i) out[before + size_t(i)] = narrow(palette.value(w.values[size_t(i)]));
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      out.push_back(narrow(palette.value(w.values[size_t(i)])));
      out.insert(out.end(), size_t(*run++), 0);
    }
  }
  return fits ? Decoded::well : Decoded::too_wide;
}

template <typename T>
int64_t decode_all(const uint8_t* data, int64_t size, const void** weights, void** owner) {
  try {
    Bits bits{data, 8 * size};
    auto out = std::make_unique<std::vector<T>>();
    out->reserve(size_t(size) + size_t(size) / 4);  // a weight of 8 bits takes about as many
    const Decoded result = decode(bits, *out);
    if (result != Decoded::well) return result == Decoded::malformed ? -1 : -2;
    static const T none = 0;
    *weights = out->empty() ? &none : out->data();
    const int64_t count = int64_t(out->size());
    *owner = out.release();
    return count;
  } catch (...) {
    return -1;
  }
}

template <typename T>
void place(const T* values, int64_t count, const uint16_t* o, const uint16_t* i, const int32_t* k, const int64_t* where,
           T* flat) {
  const int64_t first = where[0], step = where[1], ifm_first = where[2], taps = where[3];
  const int64_t ofm_depth = where[4], ifm_depth = where[5];
  for (int64_t n = 0; n < count; ++n) {
    const int64_t oc = first + step * o[n], ic = ifm_first + i[n];
    if (k[n] >= 0 && k[n] < taps && oc >= 0 && oc < ofm_depth && ic >= 0 && ic < ifm_depth)
      flat[(oc * taps + k[n]) * ifm_depth + ic] = values[n];
  }
}

}  // namespace

#define ETHORCH_API extern "C" __attribute__((visibility("default")))

// Return the number of weights in `data`; -1 if it is malformed, -2 if a weight does not fit. They are at *weights until *owner
// is passed to the ethorch_free of that width.
ETHORCH_API int64_t ethorch_decode_standard_8(const uint8_t* data, int64_t size, const void** weights, void** owner) {
  return decode_all<int8_t>(data, size, weights, owner);
}
ETHORCH_API int64_t ethorch_decode_standard_16(const uint8_t* data, int64_t size, const void** weights, void** owner) {
  return decode_all<int16_t>(data, size, weights, owner);
}
ETHORCH_API void ethorch_free_8(void* owner) { delete static_cast<std::vector<int8_t>*>(owner); }
ETHORCH_API void ethorch_free_16(void* owner) { delete static_cast<std::vector<int16_t>*>(owner); }

// Assign flat[index in W[o][ky][kx][i]] = value for a block of `count` weights. Padding is skipped.
ETHORCH_API void ethorch_place_8(const int8_t* values, int64_t count, const uint16_t* o, const uint16_t* i,
                                 const int32_t* k, const int64_t* where, int8_t* flat) {
  place(values, count, o, i, k, where, flat);
}
ETHORCH_API void ethorch_place_16(const int16_t* values, int64_t count, const uint16_t* o, const uint16_t* i,
                                  const int32_t* k, const int64_t* where, int16_t* flat) {
  place(values, count, o, i, k, where, flat);
}
