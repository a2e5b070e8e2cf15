//! A shopping cart in replicated data, changed on two nodes at once.
//!
//! A cart maps each article to its chosen options. Two devices of one customer talk to two nodes and change
//! the cart at the same time; neither waits for the other, and no choice is lost: an option that one device adds
//! while the other removes the article stays in the cart, and nothing else that was removed comes back.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use greylag::prelude::*;

/// Articles, and the options chosen of each, as one node has them.
type Cart = Replicated<OrMultiMap<String, String>>;

/// The cart as a majority of the nodes knows it, as text.
async fn show(cart: &Cart) -> greylag::Result<String> {
    let cart = cart.get().majority().await?;
    let lines = cart.iter().map(|(article, options)| {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        format!("{article} ({})", options.join(", "))
    });
    Ok(lines.collect::<Vec<_>>().join("; "))
}

#[tokio::main]
async fn main() -> greylag::Result {
    let berlin = Node::builder("shop").bind("127.0.0.1", 0).start().await?;
    let lagos = Node::builder("shop").bind("127.0.0.1", 0).seed_nodes([berlin.address().to_string()]).start().await?;
    let (phone, laptop): (Cart, Cart) = (berlin.replicated("cart-7")?, lagos.replicated("cart-7")?);

    phone.update(|cart, cx| cart.add_binding(cx, "mug".into(), "blue".into())).majority().await?;
    phone.update(|cart, cx| cart.add_binding(cx, "tea".into(), "green".into())).majority().await?;
    println!("laptop sees {}", show(&laptop).await?);

    // Concurrent changes: the phone removes the mug, the laptop adds a red one.
    phone.update(|cart, cx| cart.remove(cx, "mug")).await?;
    laptop.update(|cart, cx| cart.add_binding(cx, "mug".into(), "red".into())).await?;
    laptop.update(|cart, cx| cart.replace_binding(cx, "tea".into(), &"green".into(), "black".into())).await?;

    let (on_phone, on_laptop) = (show(&phone).await?, show(&laptop).await?);
    println!("phone sees {on_phone}");
    println!("laptop sees {on_laptop}");
    lagos.shutdown().await?;
    berlin.shutdown().await?;
    let agree = on_phone == on_laptop && on_phone == "mug (red); tea (black)";
    if agree { Ok(()) } else { Err(greylag::Error::new("the two do not agree")) }
}
