#include "core/membership/settings.h"

#include "core/membership/policy.h"

namespace gossipd {

std::vector<Setting> membership_settings(MembershipPolicy& m) {
  std::vector<Setting> settings;
  SettingTable table(settings);
  table.integer("membership.links", "", "", m.links, 1, 256, "neighbours this node tries to have");
  table.integer("membership.links_max", "", "", m.links_max, 1, 1024, "neighbours it accepts");
  table.integer("membership.protocol", "", "", m.protocol, protocol_oldest, protocol_version,
                "newest version of the protocol to speak; the older one until every node of a "
                "cluster is upgraded");
  table.milliseconds("membership.tick_ms", m.tick, 10, setting_day_ms,
                     "own stats are renewed, and some of all members' told, so often");
  table.milliseconds("membership.ping_ms", m.ping, 10, setting_day_ms,
                     "between two pings on a link");
  table.milliseconds("membership.suspect_after_ms", m.suspect_after, 10, setting_day_ms,
                     "silence on a link until its node is suspected");
  table.milliseconds("membership.fail_after_ms", m.fail_after, 10, setting_day_ms,
                     "silence until it counts as failed");
  table.milliseconds("membership.probe_ms", m.probe, 0, setting_day_ms,
                     "between two probes of members without a link, drawn at random; 0: none");
  table.milliseconds("membership.rotate_ms", m.rotate, 0, setting_day_ms,
                     "between two changes of a link for one to another member; 0: none");
  table.milliseconds("membership.handshake_timeout_ms", m.handshake_timeout, 10, setting_day_ms,
                     "for a new session to say who it is");
  table.milliseconds("membership.redial_min_ms", m.redial_min, 1, setting_day_ms,
                     "first pause before dialling again; doubled up to");
  table.milliseconds("membership.redial_max_ms", m.redial_max, 1, setting_day_ms,
                     "the longest pause before dialling again");
  table.milliseconds("membership.isolation_grace_ms", m.isolation_grace, 0, setting_day_ms,
                     "after a restart, wait so long for known members before training alone");
  table.milliseconds("membership.leave_flush_ms", m.leave_flush, 0, setting_day_ms,
                     "longest wait for unpublished changes when leaving");
  table.milliseconds("membership.finish_cap_ms", m.finish_cap, 0, setting_day_ms,
                     "longest final exchange; then `final` is written although models differ, and "
                     "the status says whose");
  table.number("membership.speed_ratio_max", "", "", m.speed_ratio_max, 1, 1e6,
               "of a member to the typical one: what it claims to train faster counts late");
  return settings;
}

}  // namespace gossipd
