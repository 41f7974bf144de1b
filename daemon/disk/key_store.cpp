#include "daemon/disk/key_store.h"

#include <utility>

#include "daemon/log/log.h"

namespace gossipd {

KeyStore::KeyStore(DiskWriter& disk, BoundedAnswers& answers, Start start, Events events)
    : disk_(disk),
      answers_(answers),
      start_(std::move(start)),
      events_(std::move(events)),
      keys_(start_.keys) {}

void KeyStore::keep() {
  if (kept_ || !keys_) return;
  kept_ = true;
  disk_.write(
      "cluster.key",
      [path = start_.path, keys = *keys_,
       was_member = start_.was_member]() -> std::optional<Error> {
        const Result<Keyring> kept = read_keyring(path);
        if (kept && *kept == keys) return std::nullopt;
        // What cannot be read may be newer; it is not written over.
        if (!kept && kept.error().code != "key-missing") return kept.error();
        // Given another key for one run, a member keeps its old one; and a ring that knows this
        // key is newer.
        const std::uint64_t id = keys.in_use().id;
        if (kept && (was_member || kept->was_retired(id) || kept->find(id) != nullptr))
          return std::nullopt;
        return write_keyring(path, keys);
      },
      [this](const std::optional<Error>& error) {
        if (!error) return;
        kept_ = false;  // the next call tries again
        events_.on_warning("the key is not kept for the next start: " + error->text);
      });
}

void KeyStore::change(const char* what, How how, Changed done) {
  if (!keys_) return done(no_key());
  if (changing_)
    return done(Error{"disk-slow", "the change before is not on disk yet; try again when it is"});
  changing_ = true;
  const auto made =
      std::make_shared<Change>(Change{*keys_});  // shared by the writer and its answer
  const Error late{"disk-slow", "the keys are not on disk after " +
                                    std::to_string(answer_limit / std::chrono::seconds(1)) +
                                    " s; they come into force when they are"};
  auto answer = answers_.bounded<std::optional<Error>>(std::move(done), late,
                                                       EventLoop::now() + answer_limit);
  disk_.write(
      "cluster.key",
      [path = start_.path, how = std::move(how), made]() -> std::optional<Error> {
        made->refused = how(*made);
        if (made->refused) return std::nullopt;  // the disk is well
        return write_keyring(path, made->keys);
      },
      [this, what, made, answer = std::move(answer)](const std::optional<Error>& error) {
        changing_ = false;
        if (error || made->refused) return answer(error ? error : made->refused);
        kept_ = true;
        keys_ = made->keys;
        events_.on_changed(*keys_);
        log_line(Level::info, std::string("event=key-") + what + " key=" + to_hex(made->id) +
                                  " in_use=" + to_hex(keys_->in_use().id));
        answer(std::nullopt);
      });
}

Error KeyStore::no_key() const {
  if (start_.certificates)
    return Error{"certificates",
                 "this cluster uses certificates (peer_tls.*), not a key: renew them in their "
                 "files, then send SIGHUP to gossipd or start it again"};
  return Error{"no-key",
               "this node was started without a key (--key-file none), so its cluster has none"};
}

Result<KeysView> KeyStore::view(const std::map<std::uint64_t, std::size_t>& sessions) const {
  if (!keys_) return no_key();
  KeysView view;
  for (const ClusterKey& key : keys_->keys()) {
    const auto found = sessions.find(key.id);
    view.keys.push_back(
        {key.id, key.id == keys_->in_use().id, found == sessions.end() ? 0 : found->second});
  }
  view.retired = keys_->retired();
  return view;
}

void KeyStore::install(const std::string& file, Changed done) {
  change(
      "installed",
      [file](Change& made) -> std::optional<Error> {
        const Result<ClusterKey> key = read_cluster_key(file);
        if (!key) return key.error();
        made.id = key->id;
        return made.keys.install(*key);
      },
      std::move(done));
}

void KeyStore::use(std::uint64_t id, Changed done) {
  change(
      "used", [id](Change& made) { return made.keys.use(made.id = id); }, std::move(done));
}

void KeyStore::retire(std::uint64_t id, Changed done) {
  change(
      "retired", [id](Change& made) { return made.keys.retire(made.id = id); }, std::move(done));
}

}  // namespace gossipd
