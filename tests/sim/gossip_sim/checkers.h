// tests/sim/gossip_sim/checkers.h - what must hold after every event, observed from outside the
// nodes.
//
// A checker's name identifies it in a Violation and matches it with its mutants:
//
//   incarnation    no node publishes or knows a lower incarnation than before; a start uses a new
//                  one
//   persist-first  what a message states about its sender (incarnation, cluster, left) is on the
//                  sender's disk
//   left           a node that has left stays out, even after a restart, until an operator lets it
//                  join
//   foreign        a node belongs to one cluster and never knows a member of another
//   samples        no node is credited with more samples than its trainer used for the job, nor
//                  with fewer than before
//   delta-once     an update reaches the trainer's parameters once and whole, and nothing else does
//   refusal        a refused message changes neither replica nor parameter; in the middle of a turn
//                  only the blocks it applied
//   replicas       (VirtualCluster) both ends of a link at rest hold the same bits
//   finite         no update is NaN or infinite
//   calm           a node that makes no steps is not busy: its trainer gets few updates a second
//   queues         sessions, waiting messages and bytes, members and refusals stay below their
//                  maxima
//   core           (campaign) an assertion of the core itself
//   living, model, final, next-job  (seed_run) after calm
//
// Only the driver has the ledger: all samples trained and incarnations used by each id.
#pragma once

#include <deque>

#include "core/wire/control.h"
#include "tests/sim/gossip_sim/hostile.h"
#include "tests/sim/gossip_sim/scenario.h"

namespace gossipd::sim {

class Checkers : public Watcher {
 public:
  Checkers(VirtualCluster& cluster, const Scenario& scenario, bool trace)
      : cluster_(cluster), scenario_(scenario), trace_(trace) {}
  void listen_for(Hostile& hostile) { hostile_ = &hostile; }

  // ---- what the chaos tells ----
  void trained(std::size_t node, Samples samples) {
    ledger_[cluster_.id(node)].trained[cluster_.job(node)] += samples;
  }
  void stepped(std::size_t node) {
    expected_[node].assign(cluster_.model(node).begin(), cluster_.model(node).end());
  }
  // The disk is no longer what the node wrote last, so its next claims may fall below earlier ones.
  void disk_spoiled(std::size_t node) {
    ledger_[cluster_.id(node)].sound = false, ledger_[cluster_.id(node)].left = false;
  }
  // From now on two hosts run under one id: the claims of one do not bind the other.
  void disk_cloned(std::size_t node) { ledger_[cluster_.id(node)].cloned = true; }
  [[nodiscard]] bool was_cloned(NodeId id) const {
    const auto found = ledger_.find(id);
    return found != ledger_.end() && found->second.cloned;
  }
  void joined_by_operator(std::size_t node) { ledger_[cluster_.id(node)].left = false; }
  void is_foreign(NodeId id) { foreign_.insert(id); }
  void note(const std::string& what);  // into the trace
  [[nodiscard]] const std::deque<std::string>& last_notes() const { return notes_; }
  [[nodiscard]] std::size_t ids_ever() const { return ledger_.size(); }
  // For this job; 0: for that for which it has trained most.
  [[nodiscard]] Samples trained_by(NodeId id, JobHash job) const;

  // ---- Watcher ----
  void started(std::size_t, const NodeState&) override;
  void took_new_id(std::size_t node, Samples carried) override { trained(node, carried); }
  void persisted(std::size_t, const NodeState&, const NodeState&) override;
  void sending(std::size_t from, std::size_t to, SessionId, Lane, const Bytes&) override;
  void before_message(std::size_t from, std::size_t to, Lane, const Bytes&) override;
  void after_message(std::size_t from, std::size_t to, Lane, const Bytes&) override;
  void before_update(std::size_t, const Update&, std::span<const float>) override;
  void after_update(std::size_t, std::span<const float>) override;
  void logged(std::size_t, const std::string&) override;
  void after_event(std::size_t) override;

 private:
  struct Ledger {
    std::map<JobHash, Samples> trained;
    std::uint64_t incarnation = 0;  // the highest that it has said
    bool sound = true;
    bool left = false;
    bool cloned = false;
  };
  struct Known {
    std::uint64_t incarnation = 0;
    Samples samples = 0;
  };
  struct LinkState {                      // links to one host; a hostile host may have several
    std::vector<std::uint64_t> received;  // hashes of the blocks
    std::uint64_t applied = 0, refused = 0, turns_heard = 0;
  };

  void check_hello(std::size_t from, const Hello&);
  void check_record(std::size_t from, const MemberRecord&);
  void check_samples(std::size_t from, NodeId of, Samples samples);
  void check_own(std::size_t from, std::uint64_t incarnation, bool left);
  void check_queue(std::size_t from, SessionId);
  void check_calm(std::size_t node, const Update&);
  void check_view(std::size_t node);
  [[nodiscard]] LinkState links_to(std::size_t from, std::size_t node) const;
  [[nodiscard]] std::string name(std::size_t node) const { return "node" + std::to_string(node); }

  VirtualCluster& cluster_;
  const Scenario& scenario_;
  const bool trace_;
  Hostile* hostile_ = nullptr;
  std::map<NodeId, Ledger> ledger_;
  std::set<NodeId> foreign_;
  std::map<std::size_t, bool> fresh_;  // has said nothing since its start
  // Under which its process still meets others, while the disk holds the next job.
  std::map<std::size_t, ClusterId> former_name_;
  // its disk held no cluster when it started
  std::set<std::size_t> joiners_;
  std::map<std::size_t, std::map<NodeId, Known>> known_;  // by each node, since its start
  std::map<std::size_t, Bytes> last_members_;             // sent; most are sent to several
  // parameters, until the next update or step
  std::map<std::size_t, std::vector<float>> expected_;
  std::map<std::size_t, std::deque<Instant>> rounds_at_rest_;  // of the last second
  LinkState before_;                                           // the message of this event
  std::vector<float> parameters_;
  std::optional<std::size_t> refused_by_;  // the node of that event, if it refused
  std::deque<std::string> notes_;
};

}  // namespace gossipd::sim
