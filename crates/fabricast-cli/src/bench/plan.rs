//! `Plan`: which cases are measured, in which order.

use fabricast_bench::case::{Case, HEADER, Operation, Wait};
use fabricast_bench::has_provider;

use super::args::{BenchArgs, Op, Sizes};

/// A case, and what its operation is called.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) op: Op,
    pub(crate) case: Case,
}

/// Operations and sizes of the tour.
const TOUR: [(Op, &[usize]); 9] = [
    (Op::Send, &[64, 64 << 10, 1 << 20]),
    (Op::Packed, &[64]),
    (Op::Pingpong, &[64]),
    (Op::Latency, &[64]),
    (Op::RmaWrite, &[64 << 10]),
    (Op::RmaRead, &[64 << 10]),
    (Op::Publish, &[64 << 10]),
    (Op::ObjectGet, &[1 << 20]),
    (Op::Stream, &[1 << 20]),
];

/// The sizes of an operation where nobody asks for others.
fn usual_sizes(op: Op) -> &'static [usize] {
    match op {
        Op::Send => &[64, 4 << 10, 64 << 10, 1 << 20],
        Op::Packed | Op::Coalesced => &[64, 1 << 10],
        Op::Pingpong | Op::Latency => &[64, 4 << 10],
        Op::RmaWrite | Op::RmaRead | Op::Publish | Op::Rdm => &[4 << 10, 64 << 10, 1 << 20],
        Op::Stream => &[256 << 10, 1 << 20, 4 << 20],
        Op::ObjectGet | Op::ObjectPut => &[4 << 10, 1 << 20, 16 << 20],
        Op::ObjectRequest => &[4 << 10, 1 << 20],
    }
}

/// All cases of a command line. `node`: the address of this end; `one_way`: both ends have one
/// clock.
pub(crate) fn plan(args: &BenchArgs, node: &str, one_way: bool) -> Vec<Planned> {
    let ops: Vec<(Op, Vec<usize>)> = match args.is_tour() {
        true => TOUR.map(|(op, sizes)| (op, sizes.to_vec())).to_vec(),
        false => {
            let all: Vec<_> = TOUR.iter().map(|(op, _)| *op).collect();
            let ops = if args.op.is_empty() { &all } else { &args.op };
            let asked: Vec<_> = args
                .size
                .iter()
                .flat_map(|Sizes(sizes)| sizes)
                .copied()
                .collect();
            let sizes = |op: Op| match asked.is_empty() {
                true => usual_sizes(op).to_vec(),
                false => asked.clone(),
            };
            ops.iter().map(|&op| (op, sizes(op))).collect()
        }
    };
    let mut cases = Vec::new();
    for (op, sizes) in ops {
        let rates = match op {
            Op::Latency => &args.rate[..],
            _ => &[0],
        };
        // One after the other has no depth.
        let is_serial = matches!(op, Op::Pingpong | Op::Latency | Op::ObjectRequest);
        let depths = if is_serial {
            &args.depth[..1]
        } else {
            &args.depth
        };
        for &size in &sizes {
            for &depth in depths {
                for &rate in rates {
                    let mut case = case(args, node, op, size);
                    case.depth = if op == Op::ObjectRequest {
                        1
                    } else {
                        depth.into()
                    };
                    case.rate = rate;
                    case.one_way = one_way;
                    case.pack = pack(args, op, &case);
                    cases.push(Planned { op, case });
                }
            }
        }
    }
    cases
}

fn pack(args: &BenchArgs, op: Op, case: &Case) -> usize {
    match op {
        Op::Packed => case.packed(args.pack),
        Op::Latency => args
            .pack
            .filter(|&pack| case.size + HEADER <= pack)
            .unwrap_or(0),
        _ => 0,
    }
}

fn case(args: &BenchArgs, node: &str, op: Op, size: usize) -> Case {
    let operation = op.operation();
    let mut case = Case {
        operation,
        size,
        depth: 1,
        seconds: args.seconds(),
        provider: "net".to_owned(),
        node: node.to_owned(),
        wait: Wait::None,
        bare_connections: 2,
        bare_pause_us: 0,
        buffer: args.buffer,
        flush_us: args.flush_us,
        pack: 0,
        gather: true,
        subscribers: args.subscribers,
        rate: 0,
        one_way: true,
        gpu: None,
        begin: None,
    };
    // libfabric 1.17 has RDM over TCP as a provider of its own.
    let is_rdm = operation == Operation::Rdm || operation.is_object();
    case.provider = match &args.provider {
        Some(provider) => provider.clone(),
        None if is_rdm && has_provider(&case) => case.provider,
        None => "tcp".to_owned(),
    };
    case
}

/// Why a case can't be measured, whatever machine it is.
pub(crate) fn why_not(planned: &Planned) -> Option<String> {
    let case = &planned.case;
    if planned.op == Op::Packed && case.pack == 0 {
        return Some(format!(
            "messages of {} bytes with their header of {HEADER} are not packed over {}",
            case.size, case.provider
        ));
    }
    case.check().err().map(|failure| failure.to_string())
}
