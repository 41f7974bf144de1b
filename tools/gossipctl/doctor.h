// tools/gossipctl/doctor.h - looks at this machine, at a daemon and at its members for what is
// wrong or will be, and says what to do.
//
// Works without a daemon as well: then only the machine is looked at. Changes nothing but a file
// of 4 KB in the state directory, which it removes. Bounded in time: each question to the daemon by
// the timeout, the disk by twenty writes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/gossipctl/answers.h"
#include "tools/gossipctl/commands.h"

namespace gossipd {

struct DoctorRequest {
  std::string state_dir;  // empty: the daemon's, or where a daemon of this user would have it
  std::string data_dir;   // empty: not looked at
};

enum class Verdict { ok, warn, fail };

struct Check {
  std::string name;
  Verdict verdict = Verdict::ok;
  std::string what;
  std::string advice;  // empty where all is well
};

// Below /var/lib: gossipd's, or that of gossipd-core's service where there is only that.
[[nodiscard]] std::string state_dir_of_root(const std::string& folder);

// Code `unhealthy` if one of them fails.
ExitCode run_doctor(const DaemonClient&, Console&, const DoctorRequest&);

// doctor_machine.cpp: what needs no daemon. `proof`: by what the daemon, if one answers, proves
// that it is a member.
[[nodiscard]] std::vector<Check> check_machine(const std::string& state_dir,
                                               const std::string& data_dir, bool daemon_answers,
                                               const std::string& proof = {});
// doctor_cluster.cpp: `later` is /v1/links again, `seconds` after `links`.
struct ClusterAnswers {
  Json status, members, links, later;
  double seconds = 0;
};
[[nodiscard]] std::vector<Check> check_cluster(const ClusterAnswers& answers);
// doctor_refusals.cpp: a node whose key or certificate others do not accept, or that does not
// accept theirs; a failure where this node is linked to nobody.
[[nodiscard]] std::optional<Check> check_refusals(const ClusterAnswers& answers);
// A member out of reach that was there when it was dialled.
[[nodiscard]] bool is_shut_out(const Json& member);

// Who finds whom at its address, as the node asked knows it.
ExitCode show_reachability(const DaemonClient&, Console&);

}  // namespace gossipd
