"""What pools, offers and workloads say of themselves wherever people write them down."""
