// Whether this node and others turn each other away for want of the same key or authority.
#include <algorithm>

#include "tools/gossipctl/doctor.h"
#include "tools/gossipctl/table.h"

namespace gossipd {

namespace {

// Nodes that want each other dial within membership.redial_max; one that has been mended is told
// nothing of the past.
constexpr double recent_s = 180;

// The words of net/peer for a dial that ended so; its code is "dial-failed".
bool is_of_tls(const std::string& reason) {
  return reason.starts_with("TLS:") || reason.find("the peer speaks TLS") != std::string::npos ||
         reason.find("the peer speaks without encryption") != std::string::npos;
}

bool is_about_proof(const Json& refusal) {
  const std::string code = text(refusal, "code");
  return code == "wrong-key" || code == "wrong-certificate" || code == "peer-speaks-plain" ||
         code == "peer-speaks-tls" || (code == "dial-failed" && is_of_tls(text(refusal, "reason")));
}

bool is_certificate(const Json& refusal) {
  return text(refusal, "reason").find("certificate") != std::string::npos;
}

std::string advice_for(bool certificates, bool alone) {
  const std::string there = alone ? "" : "run gossipctl doctor on that box; ";
  if (certificates)
    return there +
           "compare on both boxes: the clock (date -u), the certificate's dates (openssl x509 "
           "-noout -dates -in FILE) and the authority (peer_tls.ca)";
  return there +
         "compare gossipctl key list on both boxes. On the one that missed a change of the key: "
         "copy the new key file there, gossipctl key install FILE, gossipctl key use ID. One that "
         "belongs to another cluster needs the key file or an invite of the one it is to join";
}

}  // namespace

bool is_shut_out(const Json& member) {
  const std::string state = text(member, "state");
  return (state == "failed" || state == "suspect") && is_of_tls(text(member, "no_answer"));
}

// The newest counts: older ones may be of what has been mended since.
std::optional<Check> check_refusals(const ClusterAnswers& answers) {
  const bool alone = flag(answers.status, "isolated") ||
                     (count(answers.status, "links_open") == 0 && !flag(answers.status, "ready"));
  Json newest;
  for (const Json& refusal : list(answers.status, "refusals")) {
    if (!is_about_proof(refusal)) continue;
    // of a dial only the first failure is noted
    const bool lasts = alone && text(refusal, "code") == "dial-failed";
    const double age = number(refusal, "age_s").value_or(0);
    if (age > recent_s && !lasts) continue;
    if (newest.is_null() || age <= number(newest, "age_s").value_or(0)) newest = refusal;
  }
  if (newest.is_null()) return std::nullopt;
  const std::string what = "no session with " + text(newest, "peer") + ": " +
                           text(newest, "reason") + " (" +
                           human_seconds(number(newest, "age_s").value_or(0)) + " ago)";
  const bool certificates = is_certificate(newest);
  return Check{certificates ? "certificates" : "cluster key", alone ? Verdict::fail : Verdict::warn,
               (alone ? "this node is shut out: " : "") + what, advice_for(certificates, alone)};
}

}  // namespace gossipd
