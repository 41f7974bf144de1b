// daemon/config/invite_source.h - where an invite comes from, so that it need not stand on the
// command line, which other users see.
//
// `join` takes addresses and, in their place, an invite (net/peer/invite.h): the word itself, @FILE
// for a file that only its owner may read, or - for standard input, where a person is asked and
// sees no echo. A text may have words around the invite, such as the command.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/peer/invite.h"

namespace gossipd {

// Whether a word of `join` is no address but one of the three.
[[nodiscard]] bool names_invite(std::string_view word);
// Errors "invite-format", and those of read_secret_file(): "key-missing" is no file, or nothing on
// standard input. Standard input is read once: the same
// word gives the same answer again.
[[nodiscard]] Result<Invite> take_invite(std::string_view word);
// Whether standard input was read for one.
[[nodiscard]] bool invite_was_asked_for();

// Overwrites the secret of each invite in the process' own command line, for `ps`.
void hide_invites(int argc, char** argv);
// The command line of a process that starts again: invites have been read, and their keys are kept.
[[nodiscard]] std::vector<std::string> without_invites(const std::vector<std::string>& arguments,
                                                       const std::vector<Endpoint>& seeds);

}  // namespace gossipd
