//! The admission control of a node, and the log of whom it refuses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use crate::admission::control::{AdmissionControl, Intrusion};

/// Admits connections by remote host.
pub(crate) struct ConnectionAdmission(Mutex<AdmissionControl>);

impl ConnectionAdmission {
    /// An admission control that writes at most `log_rate` lines a minute about one kind of intrusion and host.
    pub(crate) fn new(log_rate: u32) -> Self {
        Self(Mutex::new(AdmissionControl::new(log_rate)))
    }

    /// Admits a connection, which waits for its Hello until [`ConnectionAdmission::release`], or refuses it.
    pub(crate) fn admit(&self, now: Instant, ip: IpAddr) -> Result<(), Intrusion> {
        self.control().admit(now, ip)
    }

    /// Counts a connection whose streams have ended among those that wait.
    pub(crate) fn readmit_waiting(&self, now: Instant, ip: IpAddr) {
        self.control().readmit_waiting(now, ip);
    }

    /// Uncounts an admitted connection that has said Hello, or has ended.
    pub(crate) fn release(&self, ip: IpAddr) {
        self.control().release(ip);
    }

    /// Counts an intrusion of a remote host, and logs it.
    pub(crate) fn intruded(&self, ip: IpAddr, intrusion: Intrusion, detail: &str) {
        let report = self.control().report(Instant::now(), ip, intrusion);
        if let Some(suppressed) = report.line {
            tracing::warn!(%ip, ?intrusion, suppressed, "refused: {detail}");
        }
        if report.banned {
            tracing::error!(%ip, "too many offences: host banned for one minute");
        }
    }

    /// The intrusions since the start, by kind and remote host.
    pub(crate) fn intrusions(&self) -> BTreeMap<(Intrusion, IpAddr), u64> {
        self.control().counts()
    }

    fn control(&self) -> MutexGuard<'_, AdmissionControl> {
        self.0.lock().expect("nothing under this lock panics")
    }
}
