//! See `models/build.rs`.

#[path = "../../models/build.rs"]
mod shared_fixtures;

fn main() -> Result<(), String> {
    shared_fixtures::main()
}
