"""What control keeps on disk: the interface in `store`, tables in `schema`, SQLAlchemy behind it in `sql`."""
