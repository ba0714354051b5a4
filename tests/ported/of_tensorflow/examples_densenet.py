"""A DenseNet of layers that make layers, trained by a class whose steps become functions, with an epoch in one function.

In `run`, batch normalization takes the rows of each replica by themselves, so both halves of a batch have the same rows here.
"""

import numpy as np
import tensorflow as tf

BATCH_SIZE = 8
l2 = tf.keras.regularizers.l2
tf.random.set_seed(20)
rng = np.random.default_rng(20)
labels = rng.integers(0, 3, 12)
images = (rng.normal(size=(12, 8, 8, 3)) + labels[:, None, None, None]).astype("float32")
order = np.concatenate([half for i in range(0, 12, 4) for half in 2 * [np.arange(i, i + 4)]])


class ConvBlock(tf.keras.Model):
    def __init__(self, num_filters, weight_decay, dropout_rate):
        super().__init__()
        self.batchnorm = tf.keras.layers.BatchNormalization(axis=-1)
        self.conv = tf.keras.layers.Conv2D(
            num_filters, (3, 3), padding="same", use_bias=False, kernel_initializer="he_normal", kernel_regularizer=l2(weight_decay)
        )
        self.dropout = tf.keras.layers.Dropout(dropout_rate)

    def call(self, x, training=True):
        output = self.batchnorm(x, training=training)
        output = self.conv(tf.nn.relu(output))
        return self.dropout(output, training=training)


class DenseBlock(tf.keras.Model):
    def __init__(self, num_layers, growth_rate, weight_decay, dropout_rate):
        super().__init__()
        self.num_layers = num_layers
        self.blocks = [ConvBlock(growth_rate, weight_decay, dropout_rate) for _ in range(num_layers)]

    def call(self, x, training=True):
        for i in range(int(self.num_layers)):
            output = self.blocks[i](x, training=training)
            x = tf.concat([x, output], axis=-1)
        return x


class DenseNet(tf.keras.Model):
    def __init__(self, output_classes, weight_decay=1e-4, dropout_rate=0.0):
        super().__init__()
        self.conv1 = tf.keras.layers.Conv2D(4, (3, 3), padding="same", use_bias=False, kernel_regularizer=l2(weight_decay))
        self.dense_blocks = [DenseBlock(2, 2, weight_decay, dropout_rate) for _ in range(2)]
        self.pool = tf.keras.layers.AveragePooling2D(pool_size=(2, 2))
        self.last_pool = tf.keras.layers.GlobalAveragePooling2D()
        self.classifier = tf.keras.layers.Dense(output_classes)

    def call(self, x, training=True):
        output = self.conv1(x)
        output = self.pool(self.dense_blocks[0](output, training=training))
        output = self.dense_blocks[1](output, training=training)
        return self.classifier(self.last_pool(tf.nn.relu(output)))


class Train:
    def __init__(self, epochs, enable_function, model, batch_size, strategy):
        self.epochs, self.enable_function, self.model = epochs, enable_function, model
        self.batch_size, self.strategy = batch_size, strategy
        self.loss_object = tf.keras.losses.SparseCategoricalCrossentropy(reduction=tf.keras.losses.Reduction.SUM, from_logits=True)
        self.optimizer = tf.keras.optimizers.SGD(learning_rate=0.1, momentum=0.9, nesterov=True)
        self.train_acc_metric = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        self.test_acc_metric = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
        self.test_loss_metric = tf.keras.metrics.Sum(name="test_loss")

    def decay(self, epoch):
        return 0.1 if epoch < 1 else 0.01

    def compute_loss(self, label, predictions):
        loss = self.loss_object(label, predictions) / self.batch_size
        loss += sum(self.model.losses) * 1.0 / self.strategy.num_replicas_in_sync
        return loss

    def train_step(self, inputs):
        image, label = inputs
        with tf.GradientTape() as tape:
            predictions = self.model(image, training=True)
            loss = self.compute_loss(label, predictions)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.train_acc_metric(label, predictions)
        return loss

    def test_step(self, inputs):
        image, label = inputs
        predictions = self.model(image, training=False)
        self.test_loss_metric(self.loss_object(label, predictions) / self.batch_size)
        self.test_acc_metric(label, predictions)

    def custom_loop(self, train_dist_dataset, test_dist_dataset):
        def distributed_train_epoch(ds):
            total_loss = 0.0
            num_train_batches = 0.0
            for one_batch in ds:
                per_replica_loss = self.strategy.run(self.train_step, args=(one_batch,))
                total_loss += self.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_loss, axis=None)
                num_train_batches += 1
            return total_loss, num_train_batches

        def distributed_test_epoch(ds):
            for one_batch in ds:
                self.strategy.run(self.test_step, args=(one_batch,))

        if self.enable_function:
            distributed_train_epoch = tf.function(distributed_train_epoch)
            distributed_test_epoch = tf.function(distributed_test_epoch)
        history = []
        for epoch in range(self.epochs):
            self.optimizer.learning_rate = self.decay(epoch)
            train_total_loss, num_train_batches = distributed_train_epoch(train_dist_dataset)
            distributed_test_epoch(test_dist_dataset)
            history.append([train_total_loss / num_train_batches, self.train_acc_metric.result(), self.test_loss_metric.result()])
            for metric in (self.train_acc_metric, self.test_acc_metric, self.test_loss_metric):
                metric.reset_state()
        return history


strategy = tf.distribute.MirroredStrategy()
dataset = tf.data.Dataset.from_tensor_slices((images[order], labels[order])).batch(BATCH_SIZE)
with strategy.scope():
    model = DenseNet(output_classes=3)
    trainer = Train(2, True, model, BATCH_SIZE, strategy)
    train_ds = strategy.experimental_distribute_dataset(dataset)
    test_ds = strategy.experimental_distribute_dataset(dataset)
    history = trainer.custom_loop(train_ds, test_ds)
np.savez(
    "numbers.npz", history=np.array(history, "float32"), weights=model.conv1.kernel.numpy(), head=model.classifier.kernel.numpy()
)
