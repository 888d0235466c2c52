//! What a client has to say to mount a session.

use std::net::{IpAddr, SocketAddr};

/// Where clients reach the NFS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountTarget {
    /// Host name or IP address.
    pub host: String,
    /// Port of NFS and MOUNT.
    pub port: u16,
}

/// What the mount is to be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountKind {
    /// Refuse changes already in the client.
    pub read_only: bool,
    /// Others change the session meanwhile, so attributes must not be kept for long.
    pub shared: bool,
}

/// Everything needed to mount a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    target: MountTarget,
    path: String,
    kind: MountKind,
}

impl MountTarget {
    /// The server that listens on `listen`, as clients see it.
    ///
    /// A wildcard address says nothing to clients. Without a better word the target is then the
    /// loopback address, right for clients on this machine.
    #[must_use]
    pub fn new(listen: SocketAddr, advertise: Option<&str>) -> Self {
        let own = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        Self {
            host: advertise.map_or_else(|| own.to_string(), ToOwned::to_owned),
            port: listen.port(),
        }
    }

    /// The server at a host and port, as [`MountTarget::authority`] gives them; `None` if they are
    /// none.
    #[must_use]
    pub fn parse(authority: &str) -> Option<Self> {
        let (host, port) = authority.rsplit_once(':')?;
        let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let host = inner.unwrap_or(host);
        (!host.is_empty()).then_some(())?;
        Some(Self {
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
    }

    /// Host and port in one text.
    #[must_use]
    pub fn authority(&self) -> String {
        authority(&self.host, self.port)
    }
}

/// A host and a port in one text; IPv6 addresses in brackets.
#[must_use]
pub fn authority(host: &str, port: u16) -> String {
    match host.parse() {
        Ok(IpAddr::V6(_)) => format!("[{host}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

/// The mount path of a ticket.
#[must_use]
pub fn mount_path(ticket: &str) -> String {
    format!("/{ticket}")
}

impl MountLine {
    /// How to mount `path` (see [`mount_path`]) from `target`.
    #[must_use]
    pub fn new(target: MountTarget, path: &str, kind: MountKind) -> Self {
        Self {
            target,
            path: path.to_owned(),
            kind,
        }
    }

    /// `HOST:/TICKET`.
    #[must_use]
    pub fn source(&self) -> String {
        let host = &self.target.host;
        match self.address() {
            Some(IpAddr::V6(_)) => format!("[{host}]:{}", self.path),
            _ => format!("{host}:{}", self.path),
        }
    }

    /// Options for `mount -o`.
    #[must_use]
    pub fn options(&self) -> String {
        let mut options = self.kernel_options();
        options.push("noatime".into());
        options.join(",")
    }

    /// The data string of `mount(2)`, for machines without the helper program `mount.nfs`.
    ///
    /// The helper turns `noatime` into a flag of the system call and resolves the host name. Here
    /// the former is left out, for the kernel refuses it in the string; and a host name has to be
    /// replaced by an address.
    #[must_use]
    pub fn data(&self) -> String {
        let host = &self.target.host;
        let mut options = self.kernel_options();
        options.push(format!("addr={host}"));
        options.push(format!("mountaddr={host}"));
        options.join(",")
    }

    /// The command that mounts on the directory `dir`.
    #[must_use]
    pub fn command(&self, dir: &str) -> String {
        format!("mount -t nfs -o {} {} {dir}", self.options(), self.source())
    }

    /// What the kernel itself understands. For a private session nobody else changes files, so
    /// that attributes and names may be kept for long, and an open need not ask.
    fn kernel_options(&self) -> Vec<String> {
        let port = self.target.port;
        let proto = match self.address() {
            Some(IpAddr::V6(_)) => "tcp6",
            _ => "tcp",
        };
        let mut options: Vec<String> = Vec::new();
        if self.kind.read_only {
            options.push("ro".into());
        }
        options.extend([
            "vers=3".into(),
            format!("proto={proto}"),
            format!("port={port}"),
            format!("mountport={port}"),
            format!("mountproto={proto}"),
        ]);
        let caching: &[&str] = if self.kind.shared {
            &["actimeo=1"]
        } else {
            &["nocto", "actimeo=600"]
        };
        let fixed = ["mountvers=3", "nolock", "noacl", "hard"];
        let sizes = [
            "noresvport",
            "rsize=1048576",
            "wsize=1048576",
            "timeo=150",
            "retrans=2",
        ];
        let rest = fixed.iter().chain(caching).chain(&sizes);
        options.extend(rest.map(|option| (*option).to_owned()));
        options
    }

    fn address(&self) -> Option<IpAddr> {
        self.target.host.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(listen: &str, advertise: Option<&str>, kind: MountKind) -> MountLine {
        let target = MountTarget::new(listen.parse().unwrap(), advertise);
        MountLine::new(target, "/t", kind)
    }

    #[test]
    fn a_private_session_is_mounted_with_long_caching() {
        let line = line("0.0.0.0:12049", None, MountKind::default());
        assert_eq!(
            line.command("/mnt"),
            "mount -t nfs -o vers=3,proto=tcp,port=12049,mountport=12049,mountproto=tcp,\
             mountvers=3,nolock,noacl,hard,nocto,actimeo=600,noresvport,rsize=1048576,\
             wsize=1048576,timeo=150,retrans=2,noatime 127.0.0.1:/t /mnt"
        );
        assert_eq!(
            line.data(),
            "vers=3,proto=tcp,port=12049,mountport=12049,mountproto=tcp,mountvers=3,nolock,noacl,\
             hard,nocto,actimeo=600,noresvport,rsize=1048576,wsize=1048576,timeo=150,retrans=2,\
             addr=127.0.0.1,mountaddr=127.0.0.1"
        );
    }

    #[test]
    fn targets_are_text_both_ways() {
        for (text, host) in [
            ("10.0.0.1:1", "10.0.0.1"),
            ("a.example:12049", "a.example"),
            ("[fd00::1]:2", "fd00::1"),
        ] {
            let target = MountTarget::parse(text).unwrap();
            assert_eq!(target.host, host);
            assert_eq!(target.authority(), text);
        }
        for wrong in ["", "a.example", ":1", "[]:1", "a:70000"] {
            assert_eq!(MountTarget::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn kinds_and_hosts_show() {
        let shared = MountKind {
            read_only: true,
            shared: true,
        };
        let line = line("[::]:1", Some("fd00::1"), shared);
        assert_eq!(line.source(), "[fd00::1]:/t");
        assert!(line.options().starts_with("ro,vers=3,proto=tcp6,port=1,"));
        assert!(line.options().contains("hard,actimeo=1,noresvport"));
        let named = MountLine::new(
            MountTarget::new("127.0.0.1:2".parse().unwrap(), Some("files.example")),
            "/t",
            MountKind::default(),
        );
        assert_eq!(named.source(), "files.example:/t");
    }
}
