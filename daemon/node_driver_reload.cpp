// What a running node takes anew from its configuration and its files, at SIGHUP.
#include "core/base/printable.h"
#include "daemon/config/refused_line.h"
#include "daemon/log/log.h"
#include "daemon/node_driver.h"

namespace gossipd {

namespace {

std::string joined(const std::vector<Endpoint>& seeds) {
  std::string words;
  for (const Endpoint& seed : seeds) words += (words.empty() ? "" : ",") + to_string(seed);
  return words;
}

}  // namespace

void NodeDriver::reload(const Result<DaemonConfig>& now_configured) {
  if (stopping_) return;
  if (now_configured) {
    set_log_level(now_configured->log_level);
    node_->set_seeds(now_configured->join, begin_event());
    after_event();
    log_line(Level::info, "event=reloaded level=" + now_configured->log_level +
                              " join=" + log_quoted(joined(now_configured->join)));
  } else {
    warn("level of the log and seeds are as they were: " + mistakes_in_log(now_configured.error()));
  }
  reload_certificates();
}

void NodeDriver::reload_certificates() {
  if (!certificates_) return;
  const Result<PeerCertificates> certificates = PeerCertificates::read(config_.peer_tls);
  if (!certificates) return warn("the certificates are as they were: " + certificates.error().text);
  transport_->set_certificates(*certificates);
  certificates_ = *certificates;
  log_line(Level::info,
           "event=peer-tls-reloaded certificate=" + log_quoted(certificates->subject()) +
               " ca=" + log_quoted(config_.peer_tls.ca));
  certificate_warnings_.clear();  // of those before
  look_at_certificates();
}

}  // namespace gossipd
