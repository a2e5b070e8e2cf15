//! Hosts and the network between them: a network namespace per host, joined by a bridge in one more namespace.
//!
//! The lab does not touch the machine's own network, and removes all its namespaces when dropped.
//! Cuts are packet-filter rules that silently drop packets at the receiving host: a reject would look like
//! a connection refused by the kernel, on which proofs of death rely (cluster S20).

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Why a step of a scenario failed.
pub(crate) type Failure = String;

/// Numbers the labs of one run of this program, which exist at the same time.
static LABS: AtomicU32 = AtomicU32::new(0);

/// Hosts on one network.
pub(crate) struct Lab {
    /// The common start of the namespaces' names.
    prefix: String,
    hosts: usize,
}

impl Lab {
    /// Creates the namespaces and links of `hosts` hosts.
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

    /// The address of a host on the lab's network.
    pub(crate) fn address(host: usize) -> String {
        format!("10.213.0.{}", host + 1)
    }

    /// The namespace of the bridge, which belongs to no node.
    pub(crate) fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    /// The namespace of a host.
    pub(crate) fn namespace(&self, host: usize) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// Drops all packets from `from` to `to` from now on, not those of the other direction.
    pub(crate) fn cut(&self, from: usize, to: usize) -> Result<(), Failure> {
        self.nft(to, &format!("add rule inet cuts arriving ip saddr {} drop", Self::address(from)))
    }

    /// Cuts all links between the two groups, in both directions.
    pub(crate) fn part(&self, left: &[usize], right: &[usize]) -> Result<(), Failure> {
        for (&a, &b) in left.iter().flat_map(|a| right.iter().map(move |b| (a, b))) {
            self.cut(a, b)?;
            self.cut(b, a)?;
        }
        Ok(())
    }

    /// Takes the host's link down: no packet reaches or leaves the host, and other hosts get no error for it.
    pub(crate) fn unplug(&self, host: usize) -> Result<(), Failure> {
        ip(&["-n", &self.hub(), "link", "set", &format!("port{host}"), "down"])
    }

    /// Gives the address of an unplugged host to host `to`, in place of the address that `to` has.
    pub(crate) fn move_address(&self, host: usize, to: usize) -> Result<(), Failure> {
        let new = self.namespace(to);
        ip(&["-n", &new, "addr", "flush", "dev", "eth0"])?;
        ip(&["-n", &new, "addr", "add", &format!("{}/24", Self::address(host)), "dev", "eth0"])?;
        let others = (0..self.hosts).filter(|other| *other != host && *other != to);
        // Flush the neighbour tables, in which the other hosts still have the link address of the old host.
        others
            .map(|other| self.namespace(other))
            .try_for_each(|other| ip(&["-n", &other, "neigh", "flush", "dev", "eth0"]))
    }

    /// Loses `percent` of a hundred packets that arrive at the host from now on.
    pub(crate) fn lose(&self, percent: u32, to: usize) -> Result<(), Failure> {
        self.nft(to, &format!("add rule inet cuts arriving iif eth0 numgen random mod 100 < {percent} drop"))
    }

    /// Removes every cut and loss; an unplugged host stays unplugged.
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
            // Removal fails only for a namespace that was never created.
            let _gone = ip(&["netns", "del", &name]);
        }
    }
}

/// Fails unless this machine has the tools and the rights to make namespaces and cut links.
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
