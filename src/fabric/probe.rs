//! The probe: one real transfer of a device's memory over a domain, before a registration is
//! believed. `shm` says that it takes a device's memory also where libfabric was built without
//! CUDA.
//!
//! Over `FI_EP_RDM` an endpoint is its own peer; over `FI_EP_MSG` two are connected inside this
//! process. Where no connection comes about, the registration is believed, and the log says why: a
//! firewall says nothing about memory.

#![allow(unsafe_code)]

use std::error::Error;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use super::av::{Av, FiAddr};
use super::device_memory;
use super::domain::Domain;
use super::ep::Ep;
use super::pep::Pep;
use super::provider::EndpointKind;
use super::queue::{Cq, Eq, RawEvent};
use super::{Completions, PostRefused, SendPost};
use crate::cuda::{DeviceAllocation, Stream};
use crate::fabric::{Level, PeerAddr};
use crate::memory::{DeviceRange, DirectBy, Region};

/// What is sent, in bytes.
const BYTES: usize = 4096;
/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(2);
/// What a provider may write into as an operation's context (`FI_CONTEXT2`).
type Cell = [u64; 8];

/// Sends from a device's memory to another place in it, and compares.
pub(super) fn run(domain: &Arc<Domain>, like: &DeviceRange, by: DirectBy) -> Result<(), String> {
    let probe = || -> Result<bool, Box<dyn Error>> {
        let region = Region::device(2 * BYTES)
            .device(like.device.ordinal())
            .virtual_memory(like.allocation == Some(DeviceAllocation::Virtual))
            .build()?;
        let range = region.device_range().ok_or("no memory of a device")?;
        // No flags: CUDA opens no memory by IPC in the process that it comes from, so this one has
        // to go without.
        let registration = device_memory::registration(domain, &range, None, by, 0)?;
        let ends = match Ends::open(domain, Instant::now() + LIMIT) {
            Ok(ends) => ends,
            Err(error) if domain.fabric().endpoint_kind() == EndpointKind::Msg => {
                tracing::info!(%by, %error, "believed without a transfer, for want of a \
                    connection");
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let stream = Stream::new(like.device)?;
        let (from, to) = (region.slice(0..BYTES)?, region.slice(BYTES..2 * BYTES)?);
        from.copy_from_host(&pattern(), &stream)?;
        to.copy_from_host(&[0; BYTES], &stream)?;
        let (memory, desc) = (region.as_ptr(), registration.desc);
        // SAFETY: the registration covers both halves, nobody writes to them meanwhile, and both go
        // along.
        unsafe { ends.transfer(memory, desc, (registration, Arc::clone(&region))) }?;
        let mut got = vec![0; BYTES];
        to.copy_to_host(&mut got, &stream)?;
        Ok(got == pattern())
    };
    match probe() {
        Ok(true) => Ok(()),
        Ok(false) => Err("a transfer was reported as done, and its bytes are not there".to_owned()),
        Err(error) => Err(format!("a transfer to try it: {error}")),
    }
}

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// From where to where.
struct Ends {
    from: Ep,
    /// None: to itself.
    to: Option<Ep>,
    peer: FiAddr,
    cq: Arc<Cq>,
    until: Instant,
}

impl Ends {
    fn open(domain: &Arc<Domain>, until: Instant) -> Result<Self, Box<dyn Error>> {
        let cq = Arc::new(Cq::open(domain, 16)?);
        match domain.fabric().endpoint_kind() {
            EndpointKind::Rdm => Self::to_itself(domain, cq, until),
            EndpointKind::Msg => Self::connected(domain, cq, until),
        }
    }

    fn to_itself(
        domain: &Arc<Domain>,
        cq: Arc<Cq>,
        until: Instant,
    ) -> Result<Self, Box<dyn Error>> {
        let av = Arc::new(Av::open(domain)?);
        let mut info = domain.fabric().info().duplicate()?;
        let from = Ep::open_rdm(domain, &mut info, (0, 0), &cq, &av)?;
        let name = from
            .name(info.addr_format())
            .ok_or("the endpoint has no name")?;
        let peer = av.insert(&name)?;
        Ok(Self {
            from,
            to: None,
            peer,
            cq,
            until,
        })
    }

    /// Two that are connected: one listens at an address of this fabric, and is gone when the
    /// connection stands.
    fn connected(
        domain: &Arc<Domain>,
        cq: Arc<Cq>,
        until: Instant,
    ) -> Result<Self, Box<dyn Error>> {
        let fabric = domain.fabric();
        let eq = Arc::new(Eq::open(fabric)?);
        let pep = Pep::listen(fabric, &PeerAddr::any(), &eq)?;
        let mut info = fabric.info().duplicate()?;
        let from = Ep::open_active(domain, &mut info, &pep.local(), (0, 0), (&cq, &eq))?;
        from.connect(&pep.local(), &[])?;
        let (mut to, mut standing) = (None, 0);
        while standing < 2 {
            if Instant::now() > until {
                return Err(format!("no connection within {LIMIT:?}").into());
            }
            // Which drives the provider, too.
            cq.read(&mut Completions::new())?;
            let Some(RawEvent {
                kind, info, errno, ..
            }) = eq.read()?
            else {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            };
            if errno != 0 {
                return Err(format!("the connection failed: errno {errno}").into());
            }
            match (kind, info) {
                (sys::FI_CONNREQ, Some(mut info)) if to.is_none() => {
                    let opened = Ep::open_passive(domain, &mut info, (0, 0), (&cq, &eq));
                    let ep = opened.inspect_err(|_| pep.reject(info.handle(), &[]))?;
                    ep.accept(&[])?;
                    to = Some(ep);
                }
                // Another's.
                (sys::FI_CONNREQ, Some(info)) => pep.reject(info.handle(), &[]),
                (sys::FI_CONNECTED, _) => standing += 1,
                _ => return Err("the connection is gone".into()),
            }
        }
        Ok(Self {
            from,
            to,
            peer: FiAddr::UNSPECIFIED,
            cq,
            until,
        })
    }

    /// From the first half of some memory to the second, and closes both ends; `held` is kept until
    /// nobody uses that any more.
    ///
    /// # Safety
    /// `desc` is of a registration of the 2 x [`BYTES`] bytes from `memory` on; `held` keeps both,
    /// and nobody else writes there.
    unsafe fn transfer(
        self,
        memory: *mut u8,
        desc: *mut c_void,
        held: impl Sized,
    ) -> Result<(), Box<dyn Error>> {
        // On the heap: where the endpoint can't be closed, they are leaked.
        let mut cells = Box::new([Cell::default(); 2]);
        let contexts = cells
            .each_mut()
            .map(|cell| (&raw mut *cell).expose_provenance());
        // SAFETY: the caller says so; memory, registration and cells are kept until the endpoints
        // were closed, below.
        let went = unsafe { self.go(memory, desc, contexts) };
        let closed = [Some(self.from), self.to]
            .into_iter()
            .flatten()
            .map(Ep::close)
            .fold(Ok(()), Result::and);
        if closed.is_err() {
            // The provider may still use it all.
            std::mem::forget((cells, held));
            return Err("its endpoint can't be closed".into());
        }
        went.map_err(Into::into)
    }

    /// # Safety
    /// As [`transfer`](Self::transfer); all of it, and the contexts, stay until the endpoints were
    /// closed.
    unsafe fn go(
        &self,
        memory: *mut u8,
        desc: *mut c_void,
        [sent, received]: [usize; 2],
    ) -> Result<(), String> {
        let descs = [desc];
        let iov = [libc::iovec {
            iov_base: memory.cast(),
            iov_len: BYTES,
        }];
        let post = SendPost::plain(&iov, &descs, sent, Some(0), Level::Sent);
        let into = memory.wrapping_add(BYTES);
        let receiver = self.to.as_ref().unwrap_or(&self.from);
        // SAFETY: the caller says so.
        unsafe { receiver.receive(into, BYTES, desc, received) }.map_err(refused)?;
        let mut posted = false;
        let mut done = Completions::new();
        while done.len() < 2 {
            if !posted {
                // SAFETY: as above; nobody writes the first half, and both ends are connected.
                match unsafe { self.from.send(self.peer, &post) } {
                    Ok(()) => posted = true,
                    Err(PostRefused::Again) => {}
                    Err(error) => return Err(refused(error)),
                }
            }
            self.cq.read(&mut done).map_err(|error| error.to_string())?;
            if let Some(error) = done.iter().find_map(|it| it.error.as_ref()) {
                return Err(error.to_string());
            }
            if Instant::now() > self.until {
                return Err(format!("not within {LIMIT:?}"));
            }
        }
        Ok(())
    }
}

fn refused(refused: PostRefused) -> String {
    match refused {
        PostRefused::Again => "the provider's queue is full".to_owned(),
        PostRefused::Errno(errno) => errno.to_string(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::Fabric;
    use crate::fabric::mr;

    /// The same transfer, between two halves of the host's memory.
    fn transfer(provider: &str, node: Option<&str>, kind: EndpointKind) {
        let builder = Fabric::builder().provider(provider).endpoint_kind(kind);
        let builder = match node {
            Some(node) => builder.node(node),
            None => builder,
        };
        let fabric = match builder.open() {
            Ok(fabric) => fabric,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let domain = fabric.open_domain().expect("a domain");
        let mut memory = Box::new([0_u8; 2 * BYTES]);
        memory[..BYTES].copy_from_slice(&pattern());
        let base = NonNull::from(&mut *memory).cast::<u8>();
        let registration = mr::register(&domain, base, 2 * BYTES).expect("registered");
        let began = Instant::now();
        let ends = Ends::open(&domain, began + LIMIT).expect("connected");
        assert_eq!(ends.to.is_some(), kind == EndpointKind::Msg);
        let desc = registration.desc;
        // SAFETY: the memory is registered, and outlives the call, which closes the ends.
        unsafe { ends.transfer(base.as_ptr(), desc, registration) }.expect("moved");
        assert!(memory[BYTES..] == pattern(), "another content");
        assert!(began.elapsed() < LIMIT);
        assert_eq!(domain.registrations(), 0);
    }

    #[test]
    fn connected_endpoints_are_tried_inside_this_process() {
        transfer("tcp", Some("127.0.0.1"), EndpointKind::Msg);
    }

    #[test]
    fn an_endpoint_without_connections_is_its_own_peer() {
        transfer("shm", None, EndpointKind::Rdm);
    }
}
