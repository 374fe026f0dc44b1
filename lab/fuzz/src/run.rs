//! Runs inputs through a target sequentially, and checks the guarantees of every target.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use peak_alloc::PeakAlloc;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::mutate::mutate;
use crate::{BYTES_MAX, INPUT_BYTES_MAX, Outcome, STACK_BYTES, TIME_MAX, Target};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The number of inputs or the time to run.
#[derive(Debug, Clone, Copy)]
pub enum Amount {
    Inputs(usize),
    Time(Duration),
}

/// The results of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    pub accepted: usize,
    pub refused: usize,
    pub most_bytes: usize,
    pub slowest: Duration,
}

/// An input that violates a guarantee.
#[derive(Debug)]
pub struct Finding {
    pub input: Vec<u8>,
    pub broken: String,
}

/// Runs the corpus, then mutations of it.
pub fn run(target: Target, seed: u64, amount: Amount) -> Result<Figures, Finding> {
    let corpus = (target.corpus)();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut reader = Reader::start(target);
    for input in &corpus {
        reader.check(input)?;
    }
    let began = Instant::now();
    let mut pool = corpus.clone();
    let mut done = 0;
    loop {
        let is_over = match amount {
            Amount::Inputs(inputs) => done >= inputs,
            Amount::Time(time) => began.elapsed() >= time,
        };
        if is_over {
            break;
        }
        let (Some(input), Some(other)) = (pool.choose(&mut random), corpus.choose(&mut random)) else {
            break;
        };
        let input = mutate(input, other, target.words, INPUT_BYTES_MAX, &mut random);
        let outcome = reader.check(&input)?;
        // Accepted mutations are mutated again, in addition to the corpus.
        if outcome == Outcome::Accepted && random.random_bool(0.1) {
            pool.truncate(corpus.len() + 255);
            pool.insert(corpus.len(), input);
        }
        done += 1;
    }
    Ok(reader.figures)
}

/// The name of threads that read inputs.
const READER: &str = "reader of inputs";

/// A thread that reads inputs, so that an input that never ends is a finding like any other.
pub struct Reader {
    figures: Figures,
    inputs: Sender<Vec<u8>>,
    results: Receiver<Result<Outcome, String>>,
}

impl Reader {
    pub fn start(target: Target) -> Self {
        keep_panics_of_readers_quiet();
        let (inputs, to_read) = channel::<Vec<u8>>();
        let (read, results) = channel();
        Builder::new()
            .name(READER.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                for input in to_read {
                    let result = catch_unwind(AssertUnwindSafe(|| (target.read)(&input)));
                    if read.send(result.map_err(|panic| panic_text(&*panic))).is_err() {
                        break;
                    }
                }
            })
            .expect("a thread can be started");
        Self { figures: Figures::default(), inputs, results }
    }

    /// Reads one input.
    pub fn check(&mut self, input: &[u8]) -> Result<Outcome, Finding> {
        ALLOCATOR.reset_peak_usage();
        let before = ALLOCATOR.current_usage();
        let began = Instant::now();
        self.inputs.send(input.to_vec()).expect("the thread waits for inputs");
        let result = self.results.recv_timeout(TIME_MAX);
        let bytes = ALLOCATOR.peak_usage().saturating_sub(before);
        let time = began.elapsed();
        let outcome = match result {
            Ok(Ok(outcome)) if bytes <= BYTES_MAX => outcome,
            failure => {
                let broken = match failure {
                    Err(_) => format!("it takes more than {TIME_MAX:?}"),
                    Ok(Err(text)) => format!("it panics: {text}"),
                    Ok(Ok(_)) => format!("it uses {} MiB", bytes >> 20),
                };
                return Err(Finding { input: input.to_vec(), broken });
            }
        };
        self.figures.most_bytes = self.figures.most_bytes.max(bytes);
        self.figures.slowest = self.figures.slowest.max(time);
        match outcome {
            Outcome::Accepted => self.figures.accepted += 1,
            Outcome::Refused => self.figures.refused += 1,
        }
        Ok(outcome)
    }
}

/// Prints no panics of readers. Some are expected, and with `RUST_BACKTRACE` the symbols of a backtrace use
/// more memory than an input may.
fn keep_panics_of_readers_quiet() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            if thread::current().name() != Some(READER) {
                print(panic);
            }
        }));
    });
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
}
