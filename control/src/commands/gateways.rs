//! `holdfast gateways`.

use super::client;
use crate::cli::ServerArgs;
use crate::failure::Failure;
use crate::output;
use crate::types::{FleetMember, MemberState, Page};

pub(super) fn run(server: &ServerArgs, json: bool) -> Result<(), Failure> {
    let page: Page<FleetMember> = client(server)?.get("/v1/gateways")?;
    if json {
        return output::json(&page.items);
    }
    let rows: Vec<_> = page.items.into_iter().map(row).collect();
    let heads = [
        "GATEWAY", "STATE", "SESSIONS", "NFS", "PEERS", "API", "RELEASE", "STARTED",
    ];
    output::table(heads, &rows)
}

fn row(member: FleetMember) -> [String; 8] {
    let mark = if member.this { " (this)" } else { "" };
    let state = match (member.alive, member.state) {
        (true, MemberState::Serving) => "serving",
        (true, MemberState::Draining) => "draining",
        // It sees that it cannot renew its lease; of others that is all there is to see.
        (false, _) if member.this => "lapsed",
        (false, _) => "dead",
    };
    [
        format!("{}{mark}", output::in_line(&member.id)),
        state.to_owned(),
        member.sessions.to_string(),
        output::in_line(&member.nfs),
        output::in_line(&member.peers),
        output::in_line(&member.api),
        output::in_line(&member.release),
        member.started,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_apart() {
        let member = |this, alive| FleetMember {
            id: "00".into(),
            this,
            alive,
            state: MemberState::Draining,
            sessions: 7,
            nfs: "a:1".into(),
            peers: String::new(),
            api: String::new(),
            started: String::new(),
            release: "1\n".into(),
        };
        let told = |this, alive| row(member(this, alive));
        assert_eq!(told(true, true)[..3], ["00 (this)", "draining", "7"]);
        assert_eq!(told(true, false)[1], "lapsed");
        assert_eq!(told(false, false)[..2], ["00", "dead"]);
        assert_eq!(told(false, true)[6], "1\\n");
    }
}
