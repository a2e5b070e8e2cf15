//! Hosts and the network between them: namespaces joined by a bridge in one more namespace.
//!
//! Nothing of it touches the machine's own network, and all of it goes when the value is dropped.
//! Cuts are packet-filter rules that drop at the receiving host, silently: a reject would read like
//! the refusal of a kernel, which is what proofs of death rest on (cluster S20).

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Why a step of a scenario did not come out.
pub(crate) type Failure = String;

/// Labs of one run of this program live beside each other.
static LABS: AtomicU32 = AtomicU32::new(0);

/// Some hosts on one network.
pub(crate) struct Lab {
    /// Begins the names of its namespaces.
    prefix: String,
    hosts: usize,
}

impl Lab {
    /// Makes so many hosts.
    pub(crate) fn new(hosts: usize) -> Result<Self, Failure> {
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let lab = Self { prefix: format!("greylag-{}-{number}", std::process::id()), hosts };
        let hub = lab.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        ip(&["-n", &hub, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "bridge", "up"])?;
        ip(&["-n", &hub, "addr", "add", "10.213.0.254/24", "dev", "bridge"])?;
        for host in 0..hosts {
            lab.add_host(host)?;
        }
        Ok(lab)
    }

    fn add_host(&self, host: usize) -> Result<(), Failure> {
        let (hub, name, port) = (self.hub(), self.namespace(host), format!("port{host}"));
        ip(&["netns", "add", &name])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        ip(&["-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
        ip(&["-n", &hub, "link", "set", &port, "master", "bridge"])?;
        ip(&["-n", &hub, "link", "set", &port, "up"])?;
        ip(&["-n", &name, "addr", "add", &format!("{}/24", Self::address(host)), "dev", "eth0"])?;
        ip(&["-n", &name, "link", "set", "eth0", "up"])?;
        self.nft(host, "add table inet cuts")?;
        self.nft(host, "add chain inet cuts arriving { type filter hook input priority 0; policy accept; }")
    }

    /// The address of a host, seen from the others.
    pub(crate) fn address(host: usize) -> String {
        format!("10.213.0.{}", host + 1)
    }

    /// The namespace that belongs to no node; a database all can reach stands here.
    pub(crate) fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    /// The namespace of a host.
    pub(crate) fn namespace(&self, host: usize) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// From now on nothing of `from` reaches `to`; the other direction is left alone.
    pub(crate) fn cut(&self, from: usize, to: usize) -> Result<(), Failure> {
        self.nft(to, &format!("add rule inet cuts arriving ip saddr {} drop", Self::address(from)))
    }

    /// Cuts every link between the two groups, both ways.
    pub(crate) fn part(&self, left: &[usize], right: &[usize]) -> Result<(), Failure> {
        for (&a, &b) in left.iter().flat_map(|a| right.iter().map(move |b| (a, b))) {
            self.cut(a, b)?;
            self.cut(b, a)?;
        }
        Ok(())
    }

    /// Nothing reaches the host or leaves it any more, and nothing tells of it.
    pub(crate) fn unplug(&self, host: usize) -> Result<(), Failure> {
        ip(&["-n", &self.hub(), "link", "set", &format!("port{host}"), "down"])
    }

    /// The address of a host that is unplugged leads to another one from now on, which has no other.
    pub(crate) fn move_address(&self, host: usize, to: usize) -> Result<(), Failure> {
        let new = self.namespace(to);
        ip(&["-n", &new, "addr", "flush", "dev", "eth0"])?;
        ip(&["-n", &new, "addr", "add", &format!("{}/24", Self::address(host)), "dev", "eth0"])?;
        let others = (0..self.hosts).filter(|other| *other != host && *other != to);
        // The other hosts still remember the link address of the old host.
        others
            .map(|other| self.namespace(other))
            .try_for_each(|other| ip(&["-n", &other, "neigh", "flush", "dev", "eth0"]))
    }

    /// From now on so many of a hundred packets that arrive at the host are lost.
    pub(crate) fn lose(&self, percent: u32, to: usize) -> Result<(), Failure> {
        self.nft(to, &format!("add rule inet cuts arriving iif eth0 numgen random mod 100 < {percent} drop"))
    }

    /// Undoes every cut and loss.
    pub(crate) fn heal(&self) -> Result<(), Failure> {
        (0..self.hosts).try_for_each(|host| self.nft(host, "flush chain inet cuts arriving"))
    }

    fn nft(&self, host: usize, rule: &str) -> Result<(), Failure> {
        let namespace = self.namespace(host);
        let words: Vec<_> = ["netns", "exec", &namespace, "nft"].into_iter().chain(rule.split(' ')).collect();
        ip(&words)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let names = (0..self.hosts).map(|host| self.namespace(host)).chain([self.hub()]);
        for name in names {
            // Removal fails only for a namespace that was never made.
            let _gone = ip(&["netns", "del", &name]);
        }
    }
}

/// Whether this machine can make namespaces and cut links.
pub(crate) fn check_tools() -> Result<(), Failure> {
    for (tool, package) in [("ip", "iproute2"), ("nft", "nftables")] {
        if Command::new(tool).arg("-V").output().is_err() {
            return Err(format!("there is no `{tool}`; install Debian's package {package}"));
        }
    }
    let probe = format!("greylag-{}-probe", std::process::id());
    ip(&["netns", "add", &probe]).map_err(|error| format!("cannot make a network namespace; be root ({error})"))?;
    ip(&["netns", "del", &probe])
}

fn ip(arguments: &[&str]) -> Result<(), Failure> {
    let shown = || format!("ip {}", arguments.join(" "));
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("`{}`: {error}", shown()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`{}`: {}", shown(), String::from_utf8_lossy(&output.stderr).trim()))
}
