//! Random numbers of the system's.

/// 64 random bits, for what others must not guess or repeat.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Early in a machine's life there may be no random numbers: time and process have to do.
        _ => {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default();
            now.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(32)
        }
    }
}
