//! `EndpointSettings`: what one endpoint asks of the provider through `fi_info` (`fi_getinfo.3`,
//! `fi_endpoint.3`).

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::info::Info;
use super::local_address::{check_local, find_local};
use super::{Fabric, PeerAddr};
use crate::Error;

/// A traffic class (`fi_endpoint.3`, "Transmit Context Attributes"). A hint: what a provider makes
/// of it is its own.
///
/// `tcp` knows [`BulkData`](Self::BulkData) only: then small messages may wait to be sent together
/// (no `TCP_NODELAY`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrafficClass {
    /// As the network pleases.
    BestEffort,
    /// Small messages that somebody waits for.
    LowLatency,
    /// A share of the network of its own.
    DedicatedAccess,
    /// Much data that nobody waits for.
    BulkData,
    /// What may wait for everything else.
    Scavenger,
    /// Traffic that keeps the network itself running.
    NetworkControl,
    /// A code point of differentiated services, 0 to 63.
    Dscp(u8),
}

impl TrafficClass {
    fn to_wire(self) -> u32 {
        match self {
            Self::BestEffort => sys::FI_TC_BEST_EFFORT,
            Self::LowLatency => sys::FI_TC_LOW_LATENCY,
            Self::DedicatedAccess => sys::FI_TC_DEDICATED_ACCESS,
            Self::BulkData => sys::FI_TC_BULK_DATA,
            Self::Scavenger => sys::FI_TC_SCAVENGER,
            Self::NetworkControl => sys::FI_TC_NETWORK_CTRL,
            Self::Dscp(code) => u32::from(code) | sys::FI_TC_DSCP,
        }
    }
}

/// What an endpoint asks of its provider, beyond what every endpoint needs. Where the provider does
/// not take a value, the endpoint is refused with [`Error::Config`], which names the setting, or
/// [`Error::Address`]; nothing is opened.
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `tx_size` | sends that the provider queues | see below | 1 to what the provider has |
/// | `rx_size` | receives that the provider queues | see below | 1 to what the provider has |
/// | `iov_limit` | segments in a message, header included | the provider's | 1 to the provider's |
/// | `traffic_class` | | the provider's | see [`TrafficClass`] |
/// | `source` | local address, with a port or 0 | see below | this machine's, or `any` |
///
/// The default of `tx_size` and `rx_size` is what the endpoint's depth needs, if the provider has
/// it; that of `source`, an IP address of this machine, is any port of the fabric's address, and
/// port 0 is any port.
///
/// A queue that is shorter than an endpoint's depth is back-pressure earlier, never a failure.
/// `source` is for endpoints that connect; a listener has its address anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndpointSettings {
    tx_size: Option<usize>,
    rx_size: Option<usize>,
    iov_limit: Option<usize>,
    traffic_class: Option<TrafficClass>,
    source: Option<PeerAddr>,
}

impl EndpointSettings {
    /// Sends that the provider queues.
    #[must_use]
    pub fn tx_size(mut self, operations: usize) -> Self {
        self.tx_size = Some(operations);
        self
    }

    /// Receives that the provider queues.
    #[must_use]
    pub fn rx_size(mut self, operations: usize) -> Self {
        self.rx_size = Some(operations);
        self
    }

    /// Segments in one message, the header's among them.
    #[must_use]
    pub fn iov_limit(mut self, segments: usize) -> Self {
        self.iov_limit = Some(segments);
        self
    }

    /// How the network should treat what is sent.
    #[must_use]
    pub fn traffic_class(mut self, class: TrafficClass) -> Self {
        self.traffic_class = Some(class);
        self
    }

    /// The local address and port to connect from.
    #[must_use]
    pub fn source(mut self, addr: PeerAddr) -> Self {
        self.source = Some(addr);
        self
    }

    /// Where connections come from.
    pub(crate) fn source_addr(&self) -> Option<PeerAddr> {
        self.source
    }

    /// Sizes of the queues that were asked for, for one endpoint.
    pub(crate) fn queue_sizes(&self, needed: (usize, usize)) -> (usize, usize) {
        (
            self.tx_size.unwrap_or(needed.0),
            self.rx_size.unwrap_or(needed.1),
        )
    }

    /// The info of an endpoint with these settings.
    pub(crate) fn info(&self, fabric: &Arc<Fabric>) -> Result<Info, Error> {
        self.check()?;
        if *self == Self::default() {
            return fabric.info().duplicate();
        }
        if let Ok(info) = self.ask(fabric) {
            return Ok(info);
        }
        // Which of them it was: each on its own.
        for (alone, field, value) in self.one_by_one() {
            match alone.ask(fabric) {
                Err(error @ Error::Address { .. }) if alone.source.is_some() => return Err(error),
                Err(_) => return Err(refused(field, value)),
                Ok(_) => {}
            }
        }
        Err(refused("endpoint", format!("{self:?}")))
    }

    fn check(&self) -> Result<(), Error> {
        let zero = |field| Err(refused_because(field, "0".to_owned(), "must be at least 1"));
        if self.tx_size == Some(0) {
            return zero("tx_size");
        }
        if self.rx_size == Some(0) {
            return zero("rx_size");
        }
        if self.iov_limit == Some(0) {
            return zero("iov_limit");
        }
        match self.traffic_class {
            Some(TrafficClass::Dscp(code)) if code > 63 => Err(refused_because(
                "traffic_class",
                code.to_string(),
                "a code point is 0 to 63",
            )),
            _ => Ok(()),
        }
    }

    fn one_by_one(&self) -> Vec<(Self, &'static str, String)> {
        let none = Self::default();
        let mut alone = Vec::new();
        if let Some(n) = self.tx_size {
            alone.push((none.tx_size(n), "tx_size", n.to_string()));
        }
        if let Some(n) = self.rx_size {
            alone.push((none.rx_size(n), "rx_size", n.to_string()));
        }
        if let Some(n) = self.iov_limit {
            alone.push((none.iov_limit(n), "iov_limit", n.to_string()));
        }
        if let Some(addr) = self.source {
            alone.push((none.source(addr), "source", addr.to_string()));
        }
        alone
    }

    /// What the provider answers to the fabric's own info with these settings as hints.
    fn ask(&self, fabric: &Fabric) -> Result<Info, Error> {
        let hints = fabric.info().duplicate()?;
        let mut hints = hints.without_addresses();
        hints.head_mut().handle = ptr::null_mut();
        self.adjust(&mut hints);
        self.check_choosable(fabric)?;
        let source = self.source.or_else(|| fabric.info().source());
        let mut info = match source.and_then(|addr| addr.socket_addr()) {
            Some(addr) => find_local(&hints, addr)?,
            None => Info::find(hints.library(), None, None, 0, Some(&hints))
                .and_then(|found| found.into_iter().next().ok_or(libc::ENODATA))
                .map_err(|errno| Error::fabric("fi_getinfo", errno))?,
        };
        // Providers do not repeat the class.
        self.adjust(&mut info);
        Ok(info)
    }

    /// A source is an IP address of a provider that has those, or any: nobody else can be told
    /// where to be.
    fn check_choosable(&self, fabric: &Fabric) -> Result<(), Error> {
        let has_names = fabric.provider().names.is_some();
        match self.source {
            Some(addr)
                if addr != PeerAddr::any() && (has_names || addr.socket_addr().is_none()) =>
            {
                Err(Error::Address {
                    address: addr.to_string(),
                    reason: format!(
                        "{} takes no such source: leave it out",
                        fabric.provider().name
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    /// An endpoint that connects is where it was told to be.
    pub(crate) fn check_source(
        &self,
        local: impl FnOnce() -> Option<PeerAddr>,
    ) -> Result<(), Error> {
        match &self.source {
            Some(source) => check_local(source, local()),
            None => Ok(()),
        }
    }

    /// Writes what was asked for into an info: the addresses stay.
    pub(crate) fn adjust(&self, info: &mut Info) {
        let (tx, rx) = (info.tx().size, info.rx().size);
        info.set_queue_sizes(self.tx_size.unwrap_or(tx), self.rx_size.unwrap_or(rx));
        if let Some(limit) = self.iov_limit {
            info.set_iov_limit(limit);
        }
        if let Some(class) = self.traffic_class {
            info.set_traffic_class(class.to_wire());
        }
    }
}

fn refused(field: &'static str, value: String) -> Error {
    refused_because(
        field,
        value,
        "the provider does not take it (Fabric::report() says what it has)",
    )
}

fn refused_because(field: &'static str, value: String, reason: &'static str) -> Error {
    Error::Config {
        field,
        value,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric() -> Option<Arc<Fabric>> {
        match Fabric::builder().provider("tcp").node("127.0.0.1").open() {
            Ok(fabric) => Some(fabric),
            Err(error) => {
                println!("SKIPPED: {error}");
                None
            }
        }
    }

    #[test]
    fn what_the_provider_takes_is_in_the_info() {
        let Some(fabric) = fabric() else { return };
        let source: PeerAddr = "127.0.0.1:0".parse().unwrap();
        let settings = EndpointSettings::default()
            .tx_size(17)
            .rx_size(33)
            .iov_limit(2)
            .traffic_class(TrafficClass::BulkData)
            .source(source);
        let info = settings.info(&fabric).unwrap();
        assert_eq!((info.tx().size, info.rx().size), (17, 33));
        assert_eq!(info.tx().iov_limit, 2);
        assert_eq!(info.tx().tclass, sys::FI_TC_BULK_DATA);
        assert_eq!(
            info.source()
                .and_then(|addr| addr.socket_addr())
                .map(|addr| addr.ip()),
            Some([127, 0, 0, 1].into())
        );
        assert_eq!(info.domain_name(), fabric.info().domain_name());
        let plain = EndpointSettings::default().info(&fabric).unwrap();
        assert_eq!(plain.tx().size, fabric.info().tx().size);
    }

    #[test]
    fn what_it_does_not_take_is_refused_by_name() {
        let Some(fabric) = fabric() else { return };
        let many = fabric.info().tx().iov_limit + 1;
        let good = EndpointSettings::default().tx_size(8);
        for (settings, field, value) in [
            (good.iov_limit(many), "iov_limit", many.to_string()),
            (good.tx_size(usize::MAX), "tx_size", usize::MAX.to_string()),
            (good.rx_size(0), "rx_size", "0".to_owned()),
            (
                good.traffic_class(TrafficClass::Dscp(64)),
                "traffic_class",
                "64".to_owned(),
            ),
        ] {
            match settings.info(&fabric) {
                Err(Error::Config {
                    field: f, value: v, ..
                }) => {
                    assert_eq!((f, v), (field, value));
                }
                other => panic!("{field}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_source_that_no_endpoint_can_have_is_refused() {
        for (provider, bad) in [
            ("tcp", &["fi_shm://1:0:0", "hex:01"][..]),
            ("shm", &["fi_shm://1:0:0", "hex:01", "127.0.0.1:0"]),
        ] {
            let fabric = match Fabric::builder().provider(provider).open() {
                Ok(fabric) => fabric,
                Err(error) => {
                    println!("SKIPPED: {error}");
                    continue;
                }
            };
            let with = |addr: &str| {
                let settings = EndpointSettings::default().source(addr.parse().unwrap());
                settings.info(&fabric)
            };
            assert!(with("any").is_ok(), "{provider}");
            for addr in bad {
                let error = with(addr).expect_err("nobody can be there");
                assert!(matches!(error, Error::Address { .. }), "{error}");
                let text = error.to_string();
                assert!(
                    text.contains(addr) && text.contains("leave it out"),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn code_points_and_labels_are_told_apart() {
        assert_eq!(TrafficClass::Dscp(46).to_wire(), 0x100 | 46);
        assert_eq!(TrafficClass::LowLatency.to_wire(), 0x201);
    }
}

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, Value, compare};

    /// The other end of each range is the provider's.
    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<EndpointSettings>] = &[
            Setting {
                name: "tx_size",
                get: |_| Value::Time(None),
                set: |c, v| c.tx_size(v.bytes()),
            },
            Setting {
                name: "rx_size",
                get: |_| Value::Time(None),
                set: |c, v| c.rx_size(v.bytes()),
            },
            Setting {
                name: "iov_limit",
                get: |_| Value::Time(None),
                set: |c, v| c.iov_limit(v.bytes()),
            },
        ];
        let source = include_str!("endpoint_settings.rs");
        compare(
            source,
            "EndpointSettings",
            settings,
            EndpointSettings::check,
        );
    }
}
