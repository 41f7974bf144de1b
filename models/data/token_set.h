// models/data/token_set.h - text as bytes, or files of uint16 tokens, in windows of fixed length.
//
// Files are one stream in the order of their names in the job. Window i has tokens [i·L + s, i·L +
// s + L) as its input and the same one token later as its target; the shift s < L is drawn anew
// every epoch, the same for all shards, so windows of different shards never overlap and no token
// is always the first of its window. Held-out windows do not shift. Tokens stay on disk and are
// read through the system's page cache: a stream may be larger than memory.
#pragma once

#include "models/data/data_set.h"
#include "models/files/data_file.h"

namespace gossipd {

// Some files as one sequence of tokens, each checked to be below the vocabulary.
class TokenStream {
 public:
  // Codes "no-data", "bad-data".
  static Result<TokenStream> open(const DataSpec&, const std::vector<std::string>& names,
                                  const LoadOptions&);

  [[nodiscard]] std::uint64_t tokens() const { return begins_.back(); }
  // Tokens [first, first + out.size()). Throws DataError when a file has changed.
  void read(std::uint64_t first, std::span<std::int64_t> out) const;

 private:
  [[nodiscard]] std::optional<Error> append(DataFile file, bool check_values);

  std::size_t token_bytes_ = 2;
  std::int64_t vocabulary_ = 0;
  std::vector<DataFile> files_;
  std::vector<std::uint64_t> begins_ = {0};  // of each file, in tokens of the stream; and the end
};

class TokenSet : public DataSet {
 public:
  // Windows over tokens [begin, end) of the stream. Code "bad-data": not enough of them.
  static Result<std::shared_ptr<const DataSet>> make(const DataSpec&,
                                                     std::shared_ptr<const TokenStream>,
                                                     std::uint64_t begin, std::uint64_t end,
                                                     bool shifts);

  [[nodiscard]] std::size_t count() const override { return count_; }
  void write(std::size_t index, const Variation*, const Batch&, std::size_t at) const override;

 private:
  TokenSet(const DataSpec&, std::shared_ptr<const TokenStream>, std::uint64_t begin,
           std::size_t count, bool shifts);

  const std::shared_ptr<const TokenStream> stream_;
  const std::uint64_t begin_;
  const std::size_t length_;
  const std::size_t count_;
  const bool shifts_;
};

// validation_fraction holds out the end of the stream: neighbouring windows are too much alike to
// be dealt out at random.
[[nodiscard]] Result<DataSets> load_tokens(const DataSpec&, const LoadOptions&);

}  // namespace gossipd
