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

void KeyStore::change(const char* what, std::uint64_t id,
                      const std::function<std::optional<Error>(Keyring&)>& how, Changed done) {
  if (!keys_) return done(no_key());
  if (changing_)
    return done(Error{"disk-slow", "the change before is not on disk yet; try again when it is"});
  const auto changed = std::make_shared<Keyring>(*keys_);  // shared by the writer and its answer
  if (auto error = how(*changed)) return done(error);
  changing_ = true;
  const Error late{"disk-slow", "the keys are not on disk after " +
                                    std::to_string(answer_limit / std::chrono::seconds(1)) +
                                    " s; they come into force when they are"};
  auto answer = answers_.bounded<std::optional<Error>>(std::move(done), late,
                                                       EventLoop::now() + answer_limit);
  disk_.write(
      "cluster.key", [path = start_.path, changed] { return write_keyring(path, *changed); },
      [this, what, id, changed, answer = std::move(answer)](const std::optional<Error>& error) {
        changing_ = false;
        if (error) return answer(error);
        kept_ = true;
        keys_ = *changed;
        events_.on_changed(*keys_);
        log_line(Level::info, std::string("event=key-") + what + " key=" + to_hex(id) +
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
  const Result<ClusterKey> key = read_cluster_key(file);
  if (!key) return done(key.error());
  change(
      "installed", key->id, [&key](Keyring& ring) { return ring.install(*key); }, std::move(done));
}

void KeyStore::use(std::uint64_t id, Changed done) {
  change(
      "used", id, [id](Keyring& ring) { return ring.use(id); }, std::move(done));
}

void KeyStore::retire(std::uint64_t id, Changed done) {
  change(
      "retired", id, [id](Keyring& ring) { return ring.retire(id); }, std::move(done));
}

}  // namespace gossipd
