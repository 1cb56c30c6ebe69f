//! Bytes from outside: the kept corpus, and mutations of valid inputs from fixed seeds.

use std::path::Path;

use base::Random;
use logfmt::{ControlLine, fuzz};

use crate::world::{Pen, layout, record, region};

/// Runs every file of `corpus/<target>/` and answers how many there were.
fn replay(target: &str, run: fn(&[u8])) -> usize {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().for_each(|file| run(&std::fs::read(file).unwrap()));
    files.len()
}

/// Runs 20,000 mutations of `valid`: some bytes changed, sometimes cut or prolonged.
fn mutate(valid: &[u8], seed: u64, run: fn(&[u8])) {
    let mut random = Random::new(seed);
    for _ in 0..20_000 {
        let mut bytes = valid.to_vec();
        for _ in 0..random.below(8) {
            let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[at] = random.next().to_le_bytes()[0];
        }
        if random.one_in(8) {
            bytes.truncate(usize::try_from(random.below(bytes.len() as u64 + 1)).unwrap());
        }
        run(&bytes);
    }
}

fn segment_bytes() -> Vec<u8> {
    let mut region = region(layout());
    let record = logfmt::SegmentRecord { nonce: fuzz::FUZZ_NONCE, ..record(0, 3, 0) };
    let mut pen = Pen::new(layout(), record, <_>::default());
    for len in [0, 8, 24, 25, 88, 150, 300] {
        pen.command(&mut region, 3, &vec![0x5b; len]);
    }
    let start = usize::try_from(layout().slot(record.slot).start).unwrap();
    // An odd first byte asks the target to repair the line, so that mutations get past the checks.
    let mut bytes = region[start..start + 2 * 4096].to_vec();
    (64..bytes.len()).step_by(64).for_each(|line| bytes[line] |= 1);
    bytes
}

#[test]
fn hostile_superblocks() {
    assert!(replay("superblock", fuzz::superblock) > 0);
    mutate(&crate::superblock::full().encode(), 11, fuzz::superblock);
    let mut configuration = Vec::new();
    logfmt::encode_configuration(&crate::world::configuration(&[1, 2, 3]), &mut configuration);
    mutate(&configuration, 12, fuzz::superblock);
}

#[test]
fn hostile_segments() {
    assert!(replay("entries", fuzz::entries) > 0);
    mutate(&segment_bytes(), 13, fuzz::entries);
}

#[test]
fn hostile_extents() {
    assert!(replay("extent", fuzz::extent) > 0);
    let mut bytes = vec![0; 32];
    bytes[0] = 200;
    bytes[8] = 64;
    bytes[17] = 16;
    bytes.extend_from_slice(&segment_bytes()[64..]);
    mutate(&bytes, 14, fuzz::extent);
}

#[test]
fn hostile_control_lines() {
    assert!(replay("control", fuzz::control) > 0);
    mutate(&ControlLine::default().encode(), 15, fuzz::control);
}
