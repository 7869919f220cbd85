"""The service side of durable memory: Celery app and tasks, ingest, dead letters, local agent, command line."""
