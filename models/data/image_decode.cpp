#include "models/data/image_decode.h"

#include <png.h>
#include <stb_image_resize.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "models/files/data_file.h"

namespace gossipd {

namespace {

// As decoded: rows × columns × channels.
struct Picture {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<std::uint8_t> pixels;
};

const std::uint8_t* bytes_of(std::span<const std::byte> file) {
  return reinterpret_cast<const std::uint8_t*>(file.data());
}

std::optional<Error> check_size(std::int64_t rows, std::int64_t columns,
                                const std::string& origin) {
  if (rows > 0 && columns > 0 && rows <= image_side_max && columns <= image_side_max &&
      rows * columns <= image_pixels_max)
    return std::nullopt;
  return bad_data(origin, "is " + std::to_string(columns) + " x " + std::to_string(rows) +
                              " pixels; at most " + std::to_string(image_pixels_max) +
                              " pixels and " + std::to_string(image_side_max) +
                              " along a side are read");
}

using Decompressor = std::unique_ptr<void, int (*)(tjhandle)>;

// The smallest of the decoder's fractions that still covers what is wanted.
tjscalingfactor fraction_for(std::int64_t rows, std::int64_t columns, const ImageSize& wanted) {
  int count = 0;
  const tjscalingfactor* factors = tjGetScalingFactors(&count);
  tjscalingfactor best{1, 1};
  for (int i = 0; i < count; ++i) {
    const tjscalingfactor factor = factors[i];
    const bool smaller = factor.num * best.denom < best.num * factor.denom;
    if (smaller && TJSCALED(rows, factor) >= wanted.rows &&
        TJSCALED(columns, factor) >= wanted.columns)
      best = factor;
  }
  return best;
}

// Ink on white: Adobe's files hold inverted values, which is what the decoder gives.
std::vector<std::uint8_t> from_cmyk(std::span<const std::uint8_t> cmyk, std::int64_t channels) {
  std::vector<std::uint8_t> out;
  out.reserve(cmyk.size() / 4 * static_cast<std::size_t>(channels));
  for (std::size_t i = 0; i + 4 <= cmyk.size(); i += 4) {
    const auto colour = [&](std::size_t c) {
      return static_cast<unsigned>(cmyk[i + c]) * cmyk[i + 3] / 255;
    };
    if (channels == 3)
      for (std::size_t c = 0; c < 3; ++c) out.push_back(static_cast<std::uint8_t>(colour(c)));
    else
      out.push_back(
          static_cast<std::uint8_t>((299 * colour(0) + 587 * colour(1) + 114 * colour(2)) / 1000));
  }
  return out;
}

Result<Picture> decode_jpeg(std::span<const std::byte> file, const std::string& origin,
                            const ImageSize& wanted) {
  const Decompressor decoder(tjInitDecompress(), tjDestroy);
  if (!decoder) return bad_data(origin, "libjpeg-turbo could not start (out of memory?)");
  const auto size = static_cast<unsigned long>(file.size());
  int columns = 0, rows = 0, subsampling = 0, colours = 0;
  const auto damaged = [&] {
    return bad_data(origin,
                    std::string("is a damaged JPEG file: ") + tjGetErrorStr2(decoder.get()));
  };
  const bool warned = tjDecompressHeader3(decoder.get(), bytes_of(file), size, &columns, &rows,
                                          &subsampling, &colours) != 0;
  if (warned && (tjGetErrorCode(decoder.get()) == TJERR_FATAL || columns <= 0)) return damaged();
  if (auto error = check_size(rows, columns, origin)) return *error;
  const tjscalingfactor factor = fraction_for(rows, columns, wanted);
  Picture picture{TJSCALED(rows, factor), TJSCALED(columns, factor), {}};
  const bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const int format = cmyk ? TJPF_CMYK : wanted.channels == 1 ? TJPF_GRAY : TJPF_RGB;
  picture.pixels.resize(
      static_cast<std::size_t>(picture.rows * picture.columns * tjPixelSize[format]));
  // TJFLAG_LIMITSCANS: a small progressive file must not cost minutes.
  if (tjDecompress2(decoder.get(), bytes_of(file), size, picture.pixels.data(),
                    static_cast<int>(picture.columns), 0, static_cast<int>(picture.rows), format,
                    TJFLAG_LIMITSCANS) != 0) {
    // Stray bytes between segments are common and harmless; an end that comes too early is not.
    const bool cut = std::strstr(tjGetErrorStr2(decoder.get()), "remature end") != nullptr;
    if (cut || tjGetErrorCode(decoder.get()) == TJERR_FATAL) return damaged();
  }
  if (cmyk) picture.pixels = from_cmyk(picture.pixels, wanted.channels);
  return picture;
}

Result<Picture> decode_png(std::span<const std::byte> file, const std::string& origin,
                           const ImageSize& wanted) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> guard(&image, png_image_free);
  const auto damaged = [&] {
    return bad_data(origin, std::string("is a damaged PNG file: ") + image.message);
  };
  if (png_image_begin_read_from_memory(&image, file.data(), file.size()) == 0) return damaged();
  if (auto error = check_size(image.height, image.width, origin)) return *error;
  // Of 16 bits without a word of what they mean libpng thinks that they are linear.
  image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  image.format = wanted.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  Picture picture{image.height, image.width, std::vector<std::uint8_t>(PNG_IMAGE_SIZE(image))};
  const png_color black{0, 0, 0};
  if (png_image_finish_read(&image, &black, picture.pixels.data(), 0, nullptr) == 0)
    return damaged();
  return picture;
}

// → channels × rows × columns of the wanted size.
Result<std::vector<std::uint8_t>> fit(const Picture& picture, const std::string& origin,
                                      const ImageSize& wanted) {
  std::int64_t rows = picture.rows, columns = picture.columns;
  if (wanted.fit == DataSpec::Fit::crop) {
    rows = std::clamp<std::int64_t>((columns * wanted.rows + wanted.columns / 2) / wanted.columns,
                                    1, picture.rows);
    columns = std::clamp<std::int64_t>((rows * wanted.columns + wanted.rows / 2) / wanted.rows, 1,
                                       picture.columns);
  }
  const std::int64_t first =
      (picture.rows - rows) / 2 * picture.columns + (picture.columns - columns) / 2;
  const std::uint8_t* from = picture.pixels.data() + first * wanted.channels;
  std::int64_t stride = picture.columns * wanted.channels;
  const auto plane = static_cast<std::size_t>(wanted.rows * wanted.columns),
             channels = static_cast<std::size_t>(wanted.channels);
  std::vector<std::uint8_t> resized;
  if (rows != wanted.rows || columns != wanted.columns) {
    resized.resize(plane * channels);
    if (stbir_resize_uint8(from, static_cast<int>(columns), static_cast<int>(rows),
                           static_cast<int>(stride), resized.data(),
                           static_cast<int>(wanted.columns), static_cast<int>(wanted.rows), 0,
                           static_cast<int>(channels)) == 0)
      return bad_data(origin, "could not be resized (out of memory?)");
    from = resized.data();
    stride = wanted.columns * wanted.channels;
  }
  std::vector<std::uint8_t> out(plane * channels);
  for (std::size_t c = 0; c < channels; ++c)
    for (std::int64_t y = 0; y < wanted.rows; ++y) {
      const std::uint8_t* row = from + y * stride + static_cast<std::int64_t>(c);
      std::uint8_t* to = out.data() + c * plane + static_cast<std::size_t>(y * wanted.columns);
      for (std::int64_t x = 0; x < wanted.columns; ++x) to[x] = row[x * wanted.channels];
    }
  return out;
}

}  // namespace

Result<std::vector<std::uint8_t>> decode_image(std::span<const std::byte> file,
                                               const std::string& origin, const ImageSize& wanted) {
  GOSSIPD_ASSERT((wanted.channels == 1 || wanted.channels == 3) && wanted.rows > 0 &&
                 wanted.columns > 0);
  const auto begins = [&](std::initializer_list<int> magic) {
    return file.size() > magic.size() &&
           std::ranges::equal(magic, file.first(magic.size()), {}, {},
                              [](std::byte b) { return std::to_integer<int>(b); });
  };
  const bool jpeg = begins({0xff, 0xd8, 0xff}), png = begins({0x89, 'P', 'N', 'G'});
  if (!jpeg && !png)
    return bad_data(origin, file.empty()
                                ? "is empty"
                                : "is neither a JPEG nor a PNG file (its first bytes say so)");
  const auto picture = jpeg ? decode_jpeg(file, origin, wanted) : decode_png(file, origin, wanted);
  if (!picture) return picture.error();
  return fit(*picture, origin, wanted);
}

}  // namespace gossipd
