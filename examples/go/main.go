// Enqueue in the transaction of the business: both are there, or neither.
//
//	DATABASE_URL=postgres://app:secret@localhost/shop go run .
package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	_ "github.com/lib/pq"
)

func main() {
	log.SetFlags(0)
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := run(db); err != nil {
		log.Fatal(err)
	}
}

func run(db *sql.DB) error {
	_, err := db.Exec("create table if not exists orders (id bigint generated always as identity, item text not null)")
	if err != nil {
		return err
	}

	order, kept, err := placeOrder(db, "tea", "Ada", 1)
	if err != nil {
		return err
	}
	fmt.Printf("order %d and job %d are committed\n", order, kept)

	order, undone, err := placeOrder(db, "coffee", "Bob", 0)
	if !errors.Is(err, errOutOfStock) {
		return fmt.Errorf("this should be out of stock: %w", err)
	}
	if _, _, err := job(db, undone); !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("job %d is there, though its transaction was rolled back (%v)", undone, err)
	}
	fmt.Printf("order %d was rolled back, and job %d with it\n", order, undone)

	state, result, err := end(db, kept)
	if err != nil {
		return err
	}
	fmt.Printf("job %d is %s: %s\n", kept, state, result)
	if state != "completed" {
		return fmt.Errorf("job %d is not completed", kept)
	}
	return nil
}

var errOutOfStock = errors.New("out of stock")

// placeOrder stores an order and the job that follows from it, in one transaction.
func placeOrder(db *sql.DB, item, name string, stock int) (order, job int64, err error) {
	tx, err := db.Begin()
	if err != nil {
		return 0, 0, err
	}
	defer tx.Rollback() // does nothing after a commit

	if err = tx.QueryRow("insert into orders (item) values ($1) returning id", item).Scan(&order); err != nil {
		return 0, 0, err
	}
	payload, err := json.Marshal(map[string]any{"name": name, "order": order})
	if err != nil {
		return 0, 0, err
	}
	err = tx.QueryRow("insert into bugle.jobs (command, payload) values ('hello', $1) returning id", payload).Scan(&job)
	if err != nil {
		return 0, 0, err
	}
	if stock == 0 {
		return order, job, errOutOfStock
	}
	return order, job, tx.Commit()
}

func job(db *sql.DB, id int64) (state, result string, err error) {
	err = db.QueryRow("select state, coalesce(result, 'null') from bugle.job($1)", id).Scan(&state, &result)
	return state, result, err
}

// end waits until a job has ended. It takes a worker that serves the command hello, such as that of "bugle dev".
func end(db *sql.DB, id int64) (state, result string, err error) {
	for tries := 0; tries < 600; tries++ {
		state, result, err = job(db, id)
		if err != nil || state == "completed" || state == "failed" || state == "cancelled" {
			return state, result, err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", "", fmt.Errorf("job %d has not ended after 30 seconds: does a worker serve the command hello?", id)
}
