#include "models/data/token_set.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/base/random.h"

namespace gossipd {

namespace {

constexpr std::size_t check_tokens = 1 << 20;  // read at a time when a file is checked
constexpr std::uint64_t windows_max = 0xffffffff;

}  // namespace

Result<TokenStream> TokenStream::open(const DataSpec& data, const std::vector<std::string>& names,
                                      const LoadOptions& options) {
  TokenStream stream;
  const bool text = data.kind == DataSpec::Kind::text;
  stream.token_bytes_ = text ? 1 : 2;
  stream.vocabulary_ = data.vocabulary;
  for (const std::string& name : names) {
    const auto path = find_data_file(options.directory, name);
    if (!path)
      return no_data(
          options.directory, "'" + name + "' is not",
          text ? "a plain text file" : "tokens as little-endian 16-bit integers, without a header");
    auto file = DataFile::open(*path);
    if (!file) return file.error();
    if (auto error = stream.append(std::move(*file), options.check_values)) return *error;
  }
  return stream;
}

std::optional<Error> TokenStream::append(DataFile file, bool check_values) {
  const std::string path = file.path();
  if (file.bytes() == 0) return bad_data(path, "is empty");
  if (file.bytes() % token_bytes_ != 0)
    return bad_data(path, "has an odd number of bytes: it is cut short, or not of 16-bit tokens");
  const std::uint64_t first = tokens(), end = first + file.bytes() / token_bytes_;
  files_.push_back(std::move(file));
  begins_.push_back(end);
  if (!check_values || vocabulary_ > (token_bytes_ == 1 ? 255 : 65535)) return std::nullopt;
  std::vector<std::int64_t> some;
  try {
    for (std::uint64_t at = first; at < end; at += some.size()) {
      some.resize(static_cast<std::size_t>(std::min<std::uint64_t>(check_tokens, end - at)));
      read(at, some);
    }
  } catch (const DataError& error) {
    if (error.code() == data_unreadable) return Error{error.code(), error.what()};
    return Error{"bad-data",
                 std::string(error.what()) +
                     "; correct vocabulary in the job's [data], or write the file anew"};
  }
  return std::nullopt;
}

void TokenStream::read(std::uint64_t first, std::span<std::int64_t> out) const {
  GOSSIPD_ASSERT(first + out.size() <= tokens());
  static thread_local std::vector<std::byte> raw;
  auto file = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), first) -
                                       begins_.begin()) -
              1;
  for (; !out.empty(); ++file) {
    const std::uint64_t skip = first - begins_[file];
    const auto here =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), begins_[file + 1] - first));
    raw.resize(here * token_bytes_);
    files_[file].read_at(skip * token_bytes_, raw);
    for (std::size_t i = 0; i < here; ++i) {
      out[i] = token_bytes_ == 1 ? std::to_integer<std::int64_t>(raw[i])
                                 : std::to_integer<std::int64_t>(raw[2 * i]) |
                                       std::to_integer<std::int64_t>(raw[2 * i + 1]) << 8;
      if (out[i] >= vocabulary_)
        throw DataError(files_[file].path() + ": token " + std::to_string(skip + i) + " is " +
                        std::to_string(out[i]) + " but the vocabulary has " +
                        std::to_string(vocabulary_));
    }
    first += here;
    out = out.subspan(here);
  }
}

Result<std::shared_ptr<const DataSet>> TokenSet::make(const DataSpec& data,
                                                      std::shared_ptr<const TokenStream> stream,
                                                      std::uint64_t begin, std::uint64_t end,
                                                      bool shifts) {
  const auto length = static_cast<std::uint64_t>(data.shape.at(0));
  const std::uint64_t tokens = end - begin;
  // The last window needs one token more for its target, and room for the largest shift.
  const std::uint64_t spare = shifts ? length : 1;
  const std::uint64_t count = tokens < spare ? 0 : (tokens - spare) / length;
  if (count == 0)
    return Error{"bad-data", data.train_files.at(0) + (shifts ? "" : " or its held-out part") +
                                 ": " + std::to_string(tokens) +
                                 " tokens are too few for windows of " + std::to_string(length) +
                                 "; use more text, or a smaller length in the job's [data]"};
  if (count > windows_max)
    return Error{"bad-data", data.train_files.at(0) +
                                 ": there are more than 2^32 windows; use a larger length"};
  return std::shared_ptr<const DataSet>(
      new TokenSet(data, std::move(stream), begin, static_cast<std::size_t>(count), shifts));
}

TokenSet::TokenSet(const DataSpec& data, std::shared_ptr<const TokenStream> stream,
                   std::uint64_t begin, std::size_t count, bool shifts)
    : DataSet(data),
      stream_(std::move(stream)),
      begin_(begin),
      length_(input().values()),
      count_(count),
      shifts_(shifts) {}

void TokenSet::write(std::size_t index, const Variation* variation, const Batch& batch,
                     std::size_t at) const {
  const std::uint64_t shift =
      shifts_ && variation != nullptr ? Random(variation->epoch).below(length_) : 0;
  const std::span inputs = place<std::int64_t>(batch.inputs, at, length_),
                  targets = place<std::int64_t>(batch.targets, at, length_);
  const std::uint64_t first = begin_ + index * length_ + shift;
  stream_->read(first, inputs);
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  stream_->read(first + length_, targets.last(1));
}

Result<DataSets> load_tokens(const DataSpec& data, const LoadOptions& options) {
  auto opened = TokenStream::open(data, data.train_files, options);
  if (!opened) return opened.error();
  auto stream = std::make_shared<const TokenStream>(std::move(*opened));
  const std::uint64_t tokens = stream->tokens();
  const auto held =
      static_cast<std::uint64_t>(std::ceil(data.validation_fraction * static_cast<double>(tokens)));
  auto train = TokenSet::make(data, stream, 0, tokens - held, true);
  if (!train) return train.error();
  DataSets sets{std::move(*train), nullptr};
  if (!options.held_out || (held == 0 && data.test_files.empty())) return sets;
  if (held == 0) {
    auto other = TokenStream::open(data, data.test_files, options);
    if (!other) return other.error();
    stream = std::make_shared<const TokenStream>(std::move(*other));
  }
  auto held_out =
      TokenSet::make(data, stream, held == 0 ? 0 : tokens - held, stream->tokens(), false);
  if (!held_out) return held_out.error();
  sets.held_out = std::move(*held_out);
  return sets;
}

}  // namespace gossipd
