//! Decides which remote hosts may open connections: hosts that send what no node would send are refused for a while.
//!
//! Every intrusion is counted by remote host. Offences (bytes that no node of any version sends) add up: the twentieth
//! within a minute bans the host for the next minute. Connections that have not said Hello yet, or have no stream any
//! more, are limited per host and in all, so that silent connections exhaust nothing. The IPv6 addresses of one /64
//! count as one host. A caller that is refused by a proper answer (another cluster, an unknown version, a foreign
//! certificate) is an operator's mistake and no offence. Source: cluster §7.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use crate::admission::callers::network;
use crate::remoting::RejectCode;

/// The kind of a connection, stream or frame that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Intrusion {
    /// Bytes that are not TLS, not HTTP/2, or a call of another method than the transport's.
    NotGrpc,
    /// A connection or stream that said no Hello within `handshake_timeout`.
    NoHello,
    /// A stream that began with something else than a Hello.
    WrongFirstFrame,
    /// A frame that is larger than its lane carries, or is announced as such.
    Oversized,
    /// A frame that cannot be read.
    Malformed,
    /// A frame that speaks for another process than the one its stream belongs to.
    Forged,
    /// No certificate, or one that this node does not believe.
    Certificate,
    /// A Hello that was refused.
    Refused(RejectCode),
    /// A connection of a host that is banned for a minute.
    Banned,
    /// A connection beyond the limit of those that have not said Hello yet.
    Crowded,
}

impl Intrusion {
    /// Whether no node of any version does this, so that the intrusion counts towards a ban.
    pub fn is_offence(self) -> bool {
        match self {
            Self::NotGrpc
            | Self::NoHello
            | Self::WrongFirstFrame
            | Self::Oversized
            | Self::Malformed
            | Self::Forged => true,
            Self::Certificate | Self::Refused(_) | Self::Banned | Self::Crowded => false,
        }
    }
}

/// Offences of one host within [`WINDOW`] that ban the host.
const OFFENCES: usize = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// How long a host is banned.
const BAN: Duration = Duration::from_secs(60);
/// Connections of one host that have not said Hello yet; a host may run hundreds of nodes.
const WAITING_PER_HOST: usize = 512;
/// The same limit over all hosts.
const WAITING: usize = 4096;
/// Hosts that are told apart; beyond that, hosts without a ban are forgotten, and their intrusions counted together.
const HOSTS: usize = 4096;

/// How to log a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    /// `Some`: write a line, which says how many before it were suppressed.
    pub(crate) line: Option<u64>,
    /// Whether this offence banned the host.
    pub(crate) banned: bool,
}

/// Admits connections by remote host.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    log_rate: u32,
    hosts: BTreeMap<IpAddr, Host>,
    counts: BTreeMap<(Intrusion, IpAddr), u64>,
    waiting: usize,
}

#[derive(Debug, Default)]
struct Host {
    offences: VecDeque<Instant>,
    banned_until: Option<Instant>,
    waiting: usize,
    lines: BTreeMap<Intrusion, Ration>,
}

/// The log lines of one kind about one host.
#[derive(Debug, Default)]
struct Ration {
    logged: VecDeque<Instant>,
    suppressed: u64,
}

impl Host {
    fn is_banned(&self, now: Instant) -> bool {
        self.banned_until.is_some_and(|until| until > now)
    }

    /// Whether the entry can be forgotten.
    fn is_forgettable(&self, now: Instant) -> bool {
        let old = |at: &Instant| now.saturating_duration_since(*at) >= WINDOW;
        self.waiting == 0
            && !self.is_banned(now)
            && self.offences.iter().all(old)
            && self.lines.values().flat_map(|ration| &ration.logged).all(old)
    }
}

impl AdmissionControl {
    /// An admission control that bans no host yet. It writes at most `log_rate` lines a minute about one kind and host.
    pub(crate) fn new(log_rate: u32) -> Self {
        Self { log_rate, hosts: BTreeMap::new(), counts: BTreeMap::new(), waiting: 0 }
    }

    /// Admits a connection, which waits for its Hello until [`AdmissionControl::release`], or refuses it.
    pub(crate) fn admit(&mut self, now: Instant, ip: IpAddr) -> Result<(), Intrusion> {
        let ip = network(ip);
        if self.waiting >= WAITING {
            return Err(Intrusion::Crowded);
        }
        let host = self.host(now, ip);
        if host.is_banned(now) {
            return Err(Intrusion::Banned);
        }
        if host.waiting >= WAITING_PER_HOST {
            return Err(Intrusion::Crowded);
        }
        host.waiting += 1;
        self.waiting += 1;
        self.check_invariants();
        Ok(())
    }

    /// A node with few callers; with many, the work would grow with the square. Source: cluster §7.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) && self.hosts.len() <= 64 {
            let waiting: usize = self.hosts.values().map(|host| host.waiting).sum();
            assert_eq!(self.waiting, waiting, "each connection without a Hello waits for its host");
            let is_low = |host: &Host| host.offences.len() < OFFENCES || host.banned_until.is_some();
            assert!(self.hosts.values().all(is_low), "so many offences within a minute ban their host");
        }
    }

    /// Counts a connection that said Hello and has no stream any more among those that wait. It was admitted before, so
    /// it is not refused, but it takes the place of a new one.
    pub(crate) fn readmit_waiting(&mut self, now: Instant, ip: IpAddr) {
        self.host(now, network(ip)).waiting += 1;
        self.waiting += 1;
    }

    /// Uncounts an admitted connection that has said Hello, or has ended.
    pub(crate) fn release(&mut self, ip: IpAddr) {
        if let Some(host) = self.hosts.get_mut(&network(ip)) {
            host.waiting = host.waiting.saturating_sub(1);
        }
        self.waiting = self.waiting.saturating_sub(1);
        self.check_invariants();
    }

    /// Counts an intrusion.
    pub(crate) fn report(&mut self, now: Instant, ip: IpAddr, what: Intrusion) -> Report {
        let ip = network(ip);
        let log_rate = self.log_rate as usize;
        let host = self.host(now, ip);
        let mut banned = false;
        if what.is_offence() {
            forget(&mut host.offences, now);
            host.offences.push_back(now);
            if host.offences.len() >= OFFENCES && !host.is_banned(now) {
                host.banned_until = Some(now + BAN);
                host.offences.clear();
                banned = true;
            }
        }
        let ration = host.lines.entry(what).or_default();
        forget(&mut ration.logged, now);
        let line = if ration.logged.len() < log_rate {
            ration.logged.push_back(now);
            Some(std::mem::take(&mut ration.suppressed))
        } else {
            ration.suppressed += 1;
            None
        };
        // Bound the counts too: they outlive the entries of forgotten hosts.
        let is_full = self.counts.len() >= HOSTS && !self.counts.contains_key(&(what, ip));
        let counted = if is_full { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { ip };
        *self.counts.entry((what, counted)).or_default() += 1;
        Report { line, banned }
    }

    /// The intrusions since the start, by kind and remote host; `0.0.0.0` stands for hosts beyond those that are told
    /// apart.
    pub(crate) fn counts(&self) -> BTreeMap<(Intrusion, IpAddr), u64> {
        self.counts.clone()
    }

    fn host(&mut self, now: Instant, ip: IpAddr) -> &mut Host {
        if self.hosts.len() >= HOSTS && !self.hosts.contains_key(&ip) {
            self.hosts.retain(|_, host| !host.is_forgettable(now));
            if self.hosts.len() >= HOSTS {
                // Keep hosts that are banned or have waiting connections; forget the others.
                self.hosts.retain(|_, host| host.waiting > 0 || host.is_banned(now));
            }
            if self.hosts.len() >= HOSTS {
                self.hosts.retain(|_, host| host.waiting > 0);
            }
        }
        self.hosts.entry(ip).or_default()
    }
}

/// Drops times that are older than the window.
fn forget(times: &mut VecDeque<Instant>, now: Instant) {
    while times.front().is_some_and(|at| now.saturating_duration_since(*at) >= WINDOW) {
        times.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(n))
    }

    /// Cluster §7: 20 offences in a minute ban a host for a minute.
    #[test]
    fn the_twentieth_offence_in_a_minute_bans_the_host_for_a_minute() {
        let mut control = AdmissionControl::new(10);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for n in 0..19 {
            assert!(!control.report(at(n * 1000), ip(1), Intrusion::NotGrpc).banned);
        }
        assert_eq!(control.admit(at(19_000), ip(1)), Ok(()));
        assert!(control.report(at(59_999), ip(1), Intrusion::Malformed).banned);
        assert_eq!(control.admit(at(60_000), ip(1)), Err(Intrusion::Banned));
        assert_eq!(control.admit(at(60_000), ip(2)), Ok(()), "another host");
        assert_eq!(control.admit(at(119_998), ip(1)), Err(Intrusion::Banned));
        assert_eq!(control.admit(at(119_999), ip(1)), Ok(()));
        assert_eq!(control.counts()[&(Intrusion::NotGrpc, ip(1))], 19);
    }

    /// Cluster T21: an IPv6 host has a /64, and all of it is banned.
    #[test]
    fn the_addresses_of_one_ipv6_network_are_one_host() {
        let (mut control, now) = (AdmissionControl::new(10), Instant::now());
        let ip = |n: u128| IpAddr::V6(std::net::Ipv6Addr::from_bits(0x2001_0db8_u128 << 96 | n));
        for n in 0..20 {
            control.report(now, ip(n), Intrusion::NotGrpc);
        }
        assert_eq!(control.admit(now, ip(99)), Err(Intrusion::Banned));
        assert_eq!(control.admit(now, ip(1 << 64)), Ok(()), "another network");
    }

    #[test]
    fn nineteen_offences_a_minute_never_ban_a_host() {
        let mut control = AdmissionControl::new(10);
        let start = Instant::now();
        for n in 0..200 {
            let now = start + Duration::from_millis(n * 3158);
            assert!(!control.report(now, ip(1), Intrusion::Oversized).banned, "offence {n}");
        }
    }

    #[test]
    fn refusals_with_a_proper_answer_are_counted_and_ban_no_host() {
        let mut control = AdmissionControl::new(10);
        let now = Instant::now();
        for _ in 0..100 {
            assert!(!control.report(now, ip(1), Intrusion::Refused(RejectCode::WrongCluster)).banned);
            assert!(!control.report(now, ip(1), Intrusion::Certificate).banned);
        }
        assert_eq!(control.admit(now, ip(1)), Ok(()));
        assert_eq!(control.counts()[&(Intrusion::Certificate, ip(1))], 100);
    }

    #[test]
    fn few_lines_are_logged_and_the_next_says_how_many_were_not() {
        let mut control = AdmissionControl::new(2);
        let now = Instant::now();
        let mut line = |now| control.report(now, ip(1), Intrusion::Certificate).line;
        assert_eq!([line(now), line(now), line(now), line(now)], [Some(0), Some(0), None, None]);
        assert_eq!(line(now + WINDOW), Some(2));
    }

    #[test]
    fn connections_that_say_nothing_are_limited_by_host_and_in_all() {
        let mut control = AdmissionControl::new(10);
        let now = Instant::now();
        for _ in 0..WAITING_PER_HOST {
            control.admit(now, ip(1)).unwrap();
        }
        assert_eq!(control.admit(now, ip(1)), Err(Intrusion::Crowded));
        control.release(ip(1));
        assert_eq!(control.admit(now, ip(1)), Ok(()));
        for n in WAITING_PER_HOST..WAITING {
            control.admit(now, ip(n as u32 + 10)).unwrap();
        }
        assert_eq!(control.admit(now, ip(2)), Err(Intrusion::Crowded));
    }

    #[test]
    fn a_million_hosts_need_the_memory_of_a_few_thousand() {
        let mut control = AdmissionControl::new(10);
        let now = Instant::now();
        for n in 0..20_000 {
            control.report(now, ip(n), Intrusion::NotGrpc);
        }
        assert!(control.hosts.len() <= HOSTS);
        assert!(control.counts.len() <= HOSTS + 20);
        assert_eq!(control.counts().values().sum::<u64>(), 20_000, "none goes uncounted");
    }
}
