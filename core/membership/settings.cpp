#include "core/membership/settings.h"

#include "core/membership/policy.h"

namespace gossipd {

std::vector<Setting> membership_settings(MembershipPolicy& m) {
  std::vector<Setting> settings;
  SettingTable table(settings);
  table.integer("membership.links", "", "", m.links, 1, 256, "neighbours this node seeks");
  table.integer("membership.links_max", "", "", m.links_max, 0, 1024,
                "neighbours this node accepts; 0: one more than it seeks");
  table.integer(
      "membership.protocol", "", "", m.protocol, protocol_oldest, protocol_version,
      "newest protocol version to speak; the older one until all nodes of a cluster are upgraded");
  table.milliseconds("membership.tick_ms", m.tick, 10, setting_day_ms,
                     "interval for publishing own and relaying others' statistics");
  table.milliseconds("membership.ping_ms", m.ping, 10, setting_day_ms,
                     "interval between pings on a link");
  table.milliseconds("membership.suspect_after_ms", m.suspect_after, 10, setting_day_ms,
                     "silence on a link after which its node is suspected");
  table.milliseconds("membership.fail_after_ms", m.fail_after, 10, setting_day_ms,
                     "silence after which a node counts as failed");
  table.milliseconds("membership.probe_ms", m.probe, 0, setting_day_ms,
                     "interval between probes of random members without a link; 0: none");
  table.milliseconds("membership.rotate_ms", m.rotate, 0, setting_day_ms,
                     "interval between replacing one link by another member; 0: never");
  table.milliseconds("membership.handshake_timeout_ms", m.handshake_timeout, 10, setting_day_ms,
                     "time for a new session to identify itself");
  table.milliseconds("membership.redial_min_ms", m.redial_min, 1, setting_day_ms,
                     "first pause before dialling again, then doubled");
  table.milliseconds("membership.redial_max_ms", m.redial_max, 1, setting_day_ms,
                     "longest pause before dialling again");
  table.milliseconds("membership.isolation_grace_ms", m.isolation_grace, 0, setting_day_ms,
                     "after a restart, time to wait for known members before training alone");
  table.milliseconds("membership.leave_flush_ms", m.leave_flush, 0, setting_day_ms,
                     "longest wait for unpublished changes when leaving");
  table.milliseconds("membership.finish_cap_ms", m.finish_cap, 0, setting_day_ms,
                     "longest final exchange; then `final` is written even if models differ, and "
                     "the status names them");
  table.number(
      "membership.speed_ratio_max", "", "", m.speed_ratio_max, 1, 1e6,
      "plausible speed of a member relative to a typical one; what it claims beyond counts later");
  return settings;
}

}  // namespace gossipd
