// daemon/disk/key_store.h - the cluster's keys while the daemon runs, and their file.
//
// A key that is changed must be on disk before it is in force, since a restart must not know less
// than the peers do; and a key from the command line is kept for restarts only once it is known to
// work. So the store hands every change to the disk writer and tells its owner when the keys have
// changed. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "daemon/disk/bounded_answers.h"
#include "daemon/disk/disk_writer.h"
#include "daemon/disk/keys_view.h"
#include "net/peer/keyring.h"

namespace gossipd {

class KeyStore {
 public:
  struct Start {
    std::optional<Keyring> keys;  // none: certificates, or plain text on loopback
    bool certificates = false;
    bool was_member = false;  // the file is of the cluster that this node goes on in
    std::string path;         // STATE/cluster.key
  };
  struct Events {
    std::function<void(const Keyring&)> on_changed;  // in force from now on
    std::function<void(const std::string&)> on_warning;
  };
  using Changed = std::function<void(std::optional<Error>)>;
  static constexpr Duration answer_limit = std::chrono::seconds(5);

  // Both must outlive the store.
  KeyStore(DiskWriter& disk, BoundedAnswers& answers, Start start, Events events);

  // The keys work: at founding, or when a cluster has answered. Nothing happens where they are kept
  // already or on their way to the disk.
  void keep();

  // `done` is called once: when the keys are in force, with a refusal, or after answer_limit with
  // code "disk-slow". Codes also "no-key", "certificates": the cluster has none.
  void install(const std::string& file, Changed done);
  void use(std::uint64_t id, Changed done);
  void retire(std::uint64_t id, Changed done);

  // `sessions`: how many are open under each key. Codes "no-key", "certificates".
  [[nodiscard]] Result<KeysView> view(const std::map<std::uint64_t, std::size_t>& sessions) const;

 private:
  struct Change {
    Keyring keys;  // as they are to be
    std::uint64_t id = 0;
    std::optional<Error> refused{};
  };
  using How = std::function<std::optional<Error>(Change&)>;  // on the disk's thread

  void change(const char* what, How how, Changed done);
  [[nodiscard]] Error no_key() const;

  DiskWriter& disk_;
  BoundedAnswers& answers_;
  const Start start_;
  const Events events_;
  std::optional<Keyring> keys_;  // in force
  bool kept_ = false;            // the file holds them, or is about to
  bool changing_ = false;        // a change is on its way to the disk; one at a time
};

}  // namespace gossipd
