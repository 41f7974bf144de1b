#include <png.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <turbojpeg.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>

#include "data_test_support.h"
#include "models/data/image_decode.h"
#include "models/data/image_files.h"
#include "models/data/image_set.h"
#include "models/files/data_file.h"

using namespace gossipd;
using test::bytes_of;
using test::contains;
using test::data_spec;
using test::load;
using test::load_error;
using test::sample;
using test::TemporaryDirectory;
using test::write_file;

namespace {

using Colour = std::array<std::uint8_t, 3>;
constexpr Colour red{250, 10, 20}, blue{10, 20, 240};

// Left third of one colour, the rest of another.
std::vector<std::uint8_t> two_colours(int columns, int rows, Colour left, Colour right) {
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < rows; ++y)
    for (int x = 0; x < columns; ++x)
      pixels.insert(pixels.end(), x < columns / 3 ? left.begin() : right.begin(),
                    x < columns / 3 ? left.end() : right.end());
  return pixels;
}

std::string jpeg(int columns, int rows, Colour left, Colour right) {
  const auto pixels = two_colours(columns, rows, left, right);
  const tjhandle encoder = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long size = 0;
  REQUIRE(tjCompress2(encoder, pixels.data(), columns, 0, rows, TJPF_RGB, &out, &size, TJSAMP_444,
                      95, 0) == 0);
  std::string file(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(encoder);
  return file;
}

std::string png(int columns, int rows, Colour left, Colour right) {
  const auto pixels = two_colours(columns, rows, left, right);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(columns);
  image.height = static_cast<png_uint_32>(rows);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  REQUIRE(png_image_write_get_memory_size(image, size, 0, pixels.data(), 0, nullptr) != 0);
  std::string file(size, '\0');
  REQUIRE(png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, nullptr) != 0);
  file.resize(size);
  return file;
}

// Grey, of 16 bits, each byte of its values `level`; `gamma`: of the file, times 100000.
std::string png_of_16_bits(std::uint8_t level, int gamma = 0) {
  constexpr png_uint_32 side = 8;
  png_structp encoder = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop words = png_create_info_struct(encoder);
  std::string file;
  png_set_write_fn(
      encoder, &file,
      [](png_structp to, png_bytep bytes, png_size_t size) {
        static_cast<std::string*>(png_get_io_ptr(to))
            ->append(reinterpret_cast<const char*>(bytes), size);
      },
      nullptr);
  png_set_IHDR(encoder, words, side, side, 16, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (gamma > 0) png_set_gAMA_fixed(encoder, words, gamma);
  png_write_info(encoder, words);
  const std::vector<png_byte> row(2 * side, level);
  for (png_uint_32 y = 0; y < side; ++y) png_write_row(encoder, row.data());
  png_write_end(encoder, words);
  png_destroy_write_struct(&encoder, &words);
  return file;
}

std::vector<std::uint8_t> decode(const std::string& file, const ImageSize& size) {
  auto pixels = decode_image(bytes_of(file), "f", size);
  REQUIRE_MESSAGE(pixels, (pixels ? "" : pixels.error().text));
  return *pixels;
}

std::string decode_error(const std::string& file) {
  const auto pixels = decode_image(bytes_of(file), "f", {3, 8, 8});
  REQUIRE(!pixels);
  CHECK(pixels.error().code == "bad-data");
  return pixels.error().text;
}

bool near(std::uint8_t value, std::uint8_t wanted) { return std::abs(value - wanted) <= 8; }

const std::string pets = "kind = 'images'\nclass_names = ['cat', 'dog']\nshape = [3, 8, 8]\n";

void make_folders(const TemporaryDirectory& directory) {
  for (const char* part : {"train", "test"})
    for (const char* name : {"cat", "dog"})
      std::filesystem::create_directories(directory / part / name);
  for (const char* part : {"train", "test"}) {
    write_file(directory / part / "cat" / "1.jpg", jpeg(20, 12, red, red));
    write_file(directory / part / "cat" / "2.PNG", png(9, 30, red, red));
    write_file(directory / part / "dog" / "1.jpeg", jpeg(64, 64, blue, blue));
    write_file(directory / part / "dog" / "notes.txt", "no image");
  }
}

}  // namespace

TEST_CASE("JPEG and PNG of any size become planes of the wanted size and colour") {
  for (const auto& [columns, rows] :
       {std::pair(8, 8), {8, 20}, {100, 60}, {300, 200}, {5, 3}, {1, 1}})
    for (const std::string& file : {jpeg(columns, rows, red, red), png(columns, rows, red, red)}) {
      const auto pixels = decode(file, {3, 8, 8});
      REQUIRE(pixels.size() == 192);
      for (std::size_t i = 0; i < pixels.size(); ++i) CHECK(near(pixels[i], red[i / 64]));
    }
}

TEST_CASE("Colour becomes grey by its brightness") {
  for (const std::string& file :
       {jpeg(16, 16, {90, 90, 90}, {90, 90, 90}), png(16, 16, {90, 90, 90}, {90, 90, 90})}) {
    const auto pixels = decode(file, {1, 8, 8});
    REQUIRE(pixels.size() == 64);
    CHECK(std::ranges::all_of(pixels, [](std::uint8_t p) { return near(p, 90); }));
  }
}

TEST_CASE("A PNG of 16 bits keeps its values, unless it says that they are not sRGB") {
  for (const int level : {0, 30, 90, 200, 255}) {
    CAPTURE(level);
    const std::string file = png_of_16_bits(static_cast<std::uint8_t>(level));
    CHECK(std::abs(decode(file, {1, 8, 8})[0] - level) <= 1);
    CHECK(std::abs(decode(file, {3, 8, 8})[0] - level) <= 1);
  }
  CHECK(decode(png_of_16_bits(90, 100'000), {1, 8, 8})[0] > 150);  // linear
}

TEST_CASE("crop takes the middle of a wide image, stretch all of it") {
  const std::string wide = png(96, 16, red, blue);
  CHECK(near(decode(wide, {3, 8, 8, DataSpec::Fit::crop})[0], blue[0]));
  CHECK(near(decode(wide, {3, 8, 8, DataSpec::Fit::stretch})[0], red[0]));
  const std::string high = jpeg(15, 90, red, blue);
  CHECK(near(decode(high, {3, 8, 8, DataSpec::Fit::crop})[0], red[0]));
  CHECK(near(decode(high, {3, 8, 8, DataSpec::Fit::crop})[7], blue[0]));
}

TEST_CASE("A damaged image is refused by name, cut at any byte") {
  CHECK(contains(decode_error(""), "f: is empty"));
  CHECK(contains(decode_error("GIF89a"), "neither a JPEG nor a PNG"));
  const std::string picture = jpeg(40, 40, red, blue);
  for (std::size_t length = 0; length + 2 < picture.size(); length += 7)
    (void)decode_error(picture.substr(0, length));
  CHECK(
      contains(decode_error(picture.substr(0, picture.size() - 20)), "f: is a damaged JPEG file"));
  const std::string drawing = png(40, 40, red, blue);
  for (std::size_t length = 0; length + 13 < drawing.size(); length += 7)
    (void)decode_error(drawing.substr(0, length));
  CHECK(contains(decode_error(drawing.substr(0, 50)), "f: is a damaged PNG file"));
}

TEST_CASE("An image that says it is enormous is refused before memory is taken for it") {
  std::string drawing = png(8, 8, red, red);
  drawing[16] = drawing[20] = '\x00';
  drawing[17] = drawing[21] = '\x01';  // 65536 and some, both ways
  // the checksum of the header's name and content, so that it is not what refuses them
  const uLong sum = crc32(0, reinterpret_cast<const Bytef*>(&drawing[12]), 17);
  for (int i = 0; i < 4; ++i)
    drawing[29 + static_cast<std::size_t>(i)] = static_cast<char>(sum >> (24 - 8 * i));
  CHECK(contains(decode_error(drawing), "at most"));
  std::string picture = jpeg(8, 8, red, red);
  const std::size_t frame = picture.find(std::string("\xff\xc0", 2));
  REQUIRE(frame != std::string::npos);
  for (const std::size_t at : {5u, 6u, 7u, 8u}) picture[frame + at] = '\x7f';  // 32639 x 32639
  CHECK(contains(decode_error(picture), "at most"));
}

TEST_CASE(
    "A folder for each class: images of all sizes, labels in the order of class_names, other files "
    "ignored") {
  const TemporaryDirectory directory;
  make_folders(directory);
  const DataSets sets = load(pets, directory);
  REQUIRE(sets.train->count() == 3);
  CHECK(sets.held_out->count() == 3);
  CHECK(sets.train->classes() == 2);
  const auto cat = sample(*sets.train, 1), dog = sample(*sets.train, 2);
  CHECK(cat->targets()[0] == 0);
  CHECK(cat->inputs()[0] == doctest::Approx(red[0] / 255.0).epsilon(0.05));
  CHECK(dog->targets()[0] == 1);
  CHECK(dog->inputs()[2 * 64] == doctest::Approx(blue[2] / 255.0).epsilon(0.05));
  CHECK(load("kind = 'images'\nclass_names = ['dog', 'cat']\n", directory).train->label(0) ==
        1 - 1);
  CHECK(load("kind = 'images'\nclasses = 2\n", directory).train->label(2) == 1);
}

TEST_CASE("The class may be the word that the file name begins with") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "train");
  write_file(directory / "train" / "cat.0.jpg", jpeg(8, 8, red, red));
  write_file(directory / "train" / "dog.0.jpg", jpeg(8, 8, blue, blue));
  write_file(directory / "train" / "dog.1.jpg", jpeg(8, 8, blue, blue));
  const std::string table = pets + "labels = 'file_name'\nvalidation_fraction = 0.3\n";
  const DataSets sets = load(table, directory);
  CHECK(sets.train->count() == 2);
  CHECK(sets.held_out->count() == 1);
  int dogs = 0;
  for (const DataSet* set : {sets.train.get(), sets.held_out.get()})
    for (std::size_t i = 0; i < set->count(); ++i) {
      const auto each = sample(*set, i);
      CHECK((each->inputs()[0] < 0.5f) == (each->targets()[0] == 1));
      dogs += static_cast<int>(each->targets()[0]);
    }
  CHECK(dogs == 2);
  write_file(directory / "train" / "doge.1.jpg", jpeg(8, 8, blue, blue));
  CHECK(contains(load_error(table, directory).text,
                 "begins with none of the job's class_names: cat, dog"));
}

TEST_CASE("Folders that miss, are empty or fit no class are refused by name") {
  const TemporaryDirectory directory;
  CHECK(load_error(pets, directory).code == "no-data");
  CHECK(contains(load_error(pets, directory).text, "the folder 'train' is not there"));
  make_folders(directory);
  CHECK(contains(load_error("kind = 'images'\nclasses = 3\n", directory).text,
                 "holds 2 folders (cat, dog) but the job has 3 classes"));
  std::filesystem::create_directory(directory / "train" / "emu");
  CHECK(contains(load_error(pets, directory).text,
                 "emu: is none of the job's class_names: cat, dog"));
  CHECK(contains(load_error("kind = 'images'\nclasses = 3\n", directory).text,
                 "emu: holds no .jpg, .jpeg or .png file"));
  std::filesystem::remove(directory / "train" / "emu");
  write_file(directory / "train" / "cat" / "3.jpg", "<html>not found</html>");
  CHECK(contains(load_error(pets, directory).text, "3.jpg: is neither a JPEG nor a PNG file"));
}

TEST_CASE("Images to test with have the numbers of the folders to train on, and no class more") {
  const TemporaryDirectory directory;
  for (const char* folder : {"train/ant", "train/bee", "train/cat", "test/bee", "test/cat"}) {
    std::filesystem::create_directories(directory / folder);
    write_file(directory / folder / "1.jpg", jpeg(8, 8, red, red));
  }
  const std::string named = "kind = 'images'\nclass_names = ['ant', 'bee', 'cat']\n";
  const std::string counted = "kind = 'images'\nclasses = 3\n";
  for (const std::string& table : {named, counted}) {
    const DataSets sets = load(table, directory);
    REQUIRE(sets.held_out->count() == 2);
    CHECK(sets.held_out->label(0) == 1);
    CHECK(sets.held_out->label(1) == 2);
  }
  std::filesystem::rename(directory / "test/bee", directory / "test/dog");
  CHECK(contains(load_error(counted, directory).text,
                 "test/dog: is a class that train/ lacks, so it has no number; remove it, or put "
                 "images of it into train/dog"));
  // as many as there are classes
  std::filesystem::copy(directory / "test/cat", directory / "test/bee");
  CHECK(contains(load_error(counted, directory).text, "test/dog: is a class that train/ lacks"));
  CHECK(contains(load_error(named, directory).text, "test/dog: is none of the job's class_names"));
  for (const char* folder : {"test/bee", "test/cat", "test/dog"})
    std::filesystem::remove_all(directory / folder);
  CHECK(contains(load_error(counted, directory).text,
                 "test: holds no folder of a class: ant, bee, cat"));
}

TEST_CASE("Images in folders whose names begin with a dot are no samples") {
  const TemporaryDirectory directory;
  make_folders(directory);
  const auto cats = directory / "train" / "cat";
  std::filesystem::create_directories(cats / ".ipynb_checkpoints" / "deep");
  write_file(cats / ".ipynb_checkpoints" / "1.jpg", jpeg(8, 8, red, red));
  write_file(cats / ".ipynb_checkpoints" / "deep" / "1.jpg", jpeg(8, 8, red, red));
  std::filesystem::create_directory(cats / "more");
  write_file(cats / "more" / "1.jpg", jpeg(8, 8, red, red));
  CHECK(load(pets, directory).train->count() == 4);
}

TEST_CASE("What has an image's name and is no file is refused by name") {
  const TemporaryDirectory directory;
  make_folders(directory);
  const auto cats = directory / "train" / "cat";
  std::filesystem::create_symlink(directory / "train" / "dog" / "1.jpeg", cats / "a link.jpg");
  CHECK(load(pets, directory).train->count() == 4);
  std::filesystem::create_symlink("/nowhere/0.jpg", cats / "0.jpg");
  CHECK(contains(load_error(pets, directory).text, "cat/0.jpg: is a link to nothing"));
  std::filesystem::remove(cats / "0.jpg");
  REQUIRE(::mkfifo((cats / "0.png").c_str(), 0600) == 0);
  CHECK(contains(load_error(pets, directory).text, "cat/0.png: has an image's name, but is no"));
}

TEST_CASE("What is left out of folders of images is counted by suffix") {
  const TemporaryDirectory directory;
  make_folders(directory);
  CHECK(load(pets, directory).left_out == "2 .txt");
  const auto cats = directory / "train" / "cat";
  for (const char* name : {"1.webp", "2.WEBP", "3.webp", ".4.webp", "README"})
    write_file(cats / name, "no image");
  write_file(directory / "train" / "5.jpg", "no class");
  std::filesystem::create_directory(cats / "more");
  write_file(cats / "more" / "1.jpg", jpeg(8, 8, red, red));
  std::filesystem::create_directory_symlink(cats / "more", cats / "again");
  const DataSets sets = load(pets, directory);
  CHECK(sets.train->count() == 4);
  CHECK(sets.left_out ==
        "3 .webp, 2 .txt, 1 .jpg beside the classes' folders, 1 link to a folder, 1 without a "
        "known suffix");
}

TEST_CASE("A folder of images is gone through once, for its images and for what is left out") {
  const TemporaryDirectory directory;
  make_folders(directory);
  // Events that are alike become one, so there are those of closing between those of opening.
  const int watch = ::inotify_init1(IN_NONBLOCK);
  REQUIRE(::inotify_add_watch(watch, (directory / "train" / "dog").c_str(), IN_OPEN | IN_CLOSE) >=
          0);
  CHECK(load(pets, directory).left_out == "2 .txt");
  alignas(inotify_event) std::array<char, 8192> events{};
  const auto bytes = ::read(watch, events.data(), events.size());
  ::close(watch);
  int opened = 0;
  for (std::ptrdiff_t at = 0; at < bytes;) {
    const auto* event =
        reinterpret_cast<const inotify_event*>(&events[static_cast<std::size_t>(at)]);
    opened += event->len == 0 && (event->mask & IN_OPEN) != 0 ? 1 : 0;
    at += static_cast<std::ptrdiff_t>(sizeof *event + event->len);
  }
  CHECK(opened == 1);
}

TEST_CASE("An image that turns out damaged is an exception that names it") {
  const TemporaryDirectory directory;
  make_folders(directory);
  const std::string whole = jpeg(20, 12, red, red);
  write_file(directory / "train" / "cat" / "1.jpg", whole.substr(0, whole.size() / 2));
  const DataSets sets = load(pets, directory);
  CHECK_THROWS_WITH_AS(sample(*sets.train, 0), doctest::Contains("1.jpg: is a damaged JPEG file"),
                       DataError);
}

TEST_CASE("Decoded images are kept up to the bound; the others are decoded again") {
  const TemporaryDirectory directory;
  make_folders(directory);
  const auto sets =
      load_data(data_spec(pets), {.directory = directory.string(), .image_cache_bytes = 2 * 192});
  REQUIRE(sets);
  for (std::size_t i = 0; i < 3; ++i) (void)sample(*sets->train, i);
  std::filesystem::remove_all(directory / "train");
  CHECK_NOTHROW(sample(*sets->train, 0));
  CHECK_NOTHROW(sample(*sets->train, 1));
  CHECK_THROWS_WITH_AS(sample(*sets->train, 2), doctest::Contains("1.jpeg: cannot be opened"),
                       DataError);
}

TEST_CASE(
    "Crop and flip move an image within its border of zeros, as a function of the visit alone") {
  DataSpec data = data_spec(
      "kind = 'images'\nclasses = 2\nshape = [1, 4, 4]\nrandom_crop = 2\nrandom_flip = true\n");
  std::vector<std::uint8_t> image(16);
  for (std::size_t i = 0; i < 16; ++i) image[i] = static_cast<std::uint8_t>(i + 1);
  const PixelWriter writer(data);
  std::vector<int> seen;
  for (std::uint64_t visit = 0; visit < 400; ++visit) {
    const Variation variation{visit, 0};
    std::vector<float> out(16), again(16);
    writer.write(image.data(), &variation, out);
    writer.write(image.data(), &variation, again);
    REQUIRE(out == again);
    // Every result is the image moved by at most 2 either way, flipped or not: find the move that
    // explains it.
    int found = 0;
    for (int down = -2; down <= 2; ++down)
      for (int right = -2; right <= 2; ++right)
        for (const bool flip : {false, true}) {
          bool equal = true;
          for (int y = 0; y < 4; ++y)
            for (int x = 0; x < 4; ++x) {
              const int row = y + down, column = x + right;
              const bool inside = row >= 0 && row < 4 && column >= 0 && column < 4;
              const float wanted =
                  inside ? static_cast<float>((row * 4 + column + 1) / 255.0) : 0.0f;
              equal = equal && out[static_cast<std::size_t>(y * 4 + (flip ? 3 - x : x))] == wanted;
            }
          if (equal) {
            ++found;
            seen.push_back((down + 2) * 10 + (right + 2) * 2 + flip);
          }
        }
    REQUIRE(found == 1);
  }
  std::ranges::sort(seen);
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  CHECK(seen.size() == 50);
}
