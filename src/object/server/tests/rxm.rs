//! The tests over `tcp;ofi_rxm`, which takes a setting of its process.

use std::process::Command;

use super::rig::PROVIDERS;

/// Runs the others in a process that has it.
#[test]
fn the_same_over_rxm() {
    if std::env::var_os(PROVIDERS).is_some() {
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let run = Command::new(program)
        .args(["object::server::tests::", "--test-threads=2"])
        .env(PROVIDERS, "tcp;ofi_rxm")
        .env("FI_OFI_RXM_SAR_LIMIT", "0")
        // Else 64 MiB of receives are made for each endpoint, and nothing is received.
        .env("FI_OFI_RXM_MSG_RX_SIZE", "256")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&run.stderr)
    );
}
