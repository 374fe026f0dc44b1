//! See `models/build.rs`.

#[path = "../build.rs"]
mod shared_fixtures;

fn main() -> Result<(), String> {
    shared_fixtures::main()
}
