//! wip
mod purchases;
fn main() {
    let _ = purchases::Purchases::read;
}
