"""Contents of pages, as numbers: charts, bars, listings. The templates under templates/pages draw them; nothing is fetched."""
