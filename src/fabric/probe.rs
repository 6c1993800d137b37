//! The probe: one real transfer of a device's memory over a domain, before a registration is believed. `shm` says that it takes a
//! device's memory also where libfabric was built without CUDA.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::av::Av;
use super::device_memory;
use super::domain::Domain;
use super::ep::Ep;
use super::provider::EndpointKind;
use super::queue::Cq;
use super::{Completions, PostRefused, SendPost};
use crate::cuda::{DeviceAllocation, Stream};
use crate::fabric::Level;
use crate::memory::{DeviceRange, DirectBy, Region};

/// What is sent, in bytes.
const BYTES: usize = 4096;
/// How long it may take.
const LIMIT: Duration = Duration::from_secs(2);
/// What a provider may write into as an operation's context (`FI_CONTEXT2`).
type Cell = [u64; 8];

/// Sends from a device's memory to another place in it, by an endpoint of its own that is its own peer, and compares.
///
/// Connected endpoints have no such peer: for them, that the registration succeeded is all that is known.
pub(super) fn run(domain: &Arc<Domain>, like: &DeviceRange, by: DirectBy) -> Result<(), String> {
    if domain.fabric().endpoint_kind() == EndpointKind::Msg {
        return Ok(());
    }
    let probe = || -> Result<bool, Box<dyn std::error::Error>> {
        let region = Region::device(2 * BYTES)
            .device(like.device.ordinal())
            .virtual_memory(like.allocation == Some(DeviceAllocation::Virtual))
            .build()?;
        let stream = Stream::new(like.device)?;
        let (from, to) = (region.slice(0..BYTES)?, region.slice(BYTES..2 * BYTES)?);
        let pattern: Vec<u8> = (0..BYTES).map(|i| (i * 7 + i / 251) as u8).collect();
        from.copy_from_host(&pattern, &stream)?;
        to.copy_from_host(&[0; BYTES], &stream)?;
        transfer(domain, &region, by)?;
        let mut got = vec![0; BYTES];
        to.copy_to_host(&mut got, &stream)?;
        Ok(got == pattern)
    };
    match probe() {
        Ok(true) => Ok(()),
        Ok(false) => Err("a transfer was reported as done, and its bytes are not there".to_owned()),
        Err(error) => Err(format!("a transfer to try it: {error}")),
    }
}

/// From the first half of a region to the second.
fn transfer(
    domain: &Arc<Domain>,
    region: &Arc<Region>,
    by: DirectBy,
) -> Result<(), Box<dyn std::error::Error>> {
    let range = region.device_range().ok_or("no memory of a device")?;
    // No flags: CUDA opens no memory by IPC in the process that it comes from, so this one has to go without.
    let registration = device_memory::registration(domain, &range, None, by, 0)?;
    let cq = Arc::new(Cq::open(domain, 16)?);
    let av = Arc::new(Av::open(domain)?);
    let mut info = domain.fabric().info().duplicate()?;
    let ep = Ep::open_rdm(domain, &mut info, (0, 0), &cq, &av)?;
    let name = ep
        .name(info.addr_format())
        .ok_or("the endpoint has no name")?;
    let peer = av.insert(&name)?;
    // On the heap: where the endpoint can't be closed, they are leaked.
    let mut cells = Box::new([Cell::default(); 2]);
    let [sent, received] = cells
        .each_mut()
        .map(|cell| (&raw mut *cell).expose_provenance());
    let desc = [registration.desc];
    let iov = [libc::iovec {
        iov_base: region.as_ptr().cast(),
        iov_len: BYTES,
    }];
    let post = SendPost::plain(&iov, &desc, sent, Some(0), Level::Sent);
    let go = || {
        let into = region.as_ptr().wrapping_add(BYTES);
        let until = Instant::now() + LIMIT;
        // SAFETY: the region, its registration and the cells are kept until the endpoint was closed, below.
        unsafe { ep.receive(into, BYTES, desc[0], received) }.map_err(refused)?;
        let mut posted = false;
        let mut done = Completions::new();
        while done.len() < 2 {
            if !posted {
                // SAFETY: as above; nobody writes the first half.
                match unsafe { ep.send(peer, &post) } {
                    Ok(()) => posted = true,
                    Err(PostRefused::Again) => {}
                    Err(error) => return Err(refused(error)),
                }
            }
            cq.read(&mut done).map_err(|error| error.to_string())?;
            if let Some(error) = done.iter().find_map(|it| it.error.as_ref()) {
                return Err(error.to_string());
            }
            if Instant::now() > until {
                return Err(format!("not within {LIMIT:?}"));
            }
        }
        Ok(())
    };
    let went: Result<(), String> = go();
    if ep.close().is_err() {
        // The provider may still use it all.
        std::mem::forget((registration, cells, Arc::clone(region)));
        return Err("its endpoint can't be closed".into());
    }
    went.map_err(Into::into)
}

fn refused(refused: PostRefused) -> String {
    match refused {
        PostRefused::Again => "the provider's queue is full".to_owned(),
        PostRefused::Errno(errno) => errno.to_string(),
    }
}
